"""Tracking in MLflow. Modules that import mlflow are imported only where they are needed."""
