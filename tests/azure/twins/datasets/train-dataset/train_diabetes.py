import argparse
import glob
import os

import joblib
import numpy as np
from azureml.core.run import Run
from sklearn.linear_model import Ridge
from sklearn.metrics import mean_squared_error

parser = argparse.ArgumentParser()
parser.add_argument("--data-folder", type=str)
args = parser.parse_args()

os.makedirs("./outputs", exist_ok=True)
base_path = args.data_folder
X = np.load(glob.glob(os.path.join(base_path, "**/features.npy"), recursive=True)[0])
y = np.load(glob.glob(os.path.join(base_path, "**/labels.npy"), recursive=True)[0])
run = Run.get_context()
for alpha in np.arange(0.0, 1.0, 0.05):
    model = Ridge(alpha=alpha).fit(X[:350], y[:350])
    mse = mean_squared_error(model.predict(X[350:]), y[350:])
    run.log("alpha", alpha)
    run.log("mse", mse)
    if alpha > 0.94:
        joblib.dump(model, f"outputs/ridge_{alpha:.2f}.pkl")
