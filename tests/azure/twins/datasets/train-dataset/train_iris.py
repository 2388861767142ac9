import argparse
import os

import joblib
from azureml.core import Dataset, Run
from sklearn.tree import DecisionTreeClassifier

parser = argparse.ArgumentParser()
parser.add_argument("--input-data", type=str)
args = parser.parse_args()

run = Run.get_context()
dataset = run.input_datasets["iris"]
assert Dataset.get_by_id(run.experiment.workspace, id=args.input_data).id == dataset.id
frame = dataset.to_pandas_dataframe()
x_col = ["sepal_length", "sepal_width", "petal_length", "petal_width"]
train, test = frame[frame.index % 2 == 0], frame[frame.index % 2 == 1]
model = DecisionTreeClassifier().fit(train[x_col], train["species"])
run.log("accuracy", model.score(test[x_col], test["species"]))
os.makedirs("outputs", exist_ok=True)
joblib.dump(model, "outputs/iris_model.pkl")
