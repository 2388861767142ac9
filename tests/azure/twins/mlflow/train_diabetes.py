import mlflow
import mlflow.sklearn
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge

mlflow.sklearn.autolog(serialization_format="cloudpickle")
X, y = load_diabetes(return_X_y=True)
with mlflow.start_run():
    model = Ridge(alpha=0.05).fit(X[:350], y[:350])
    mlflow.log_param("alpha", 0.05)
    mlflow.log_metric("r2", model.score(X[350:], y[350:]))
