"""Where models that were logged to MLflow before version 0.1.0 look for their loader."""

from dstransformer.export.pyfunc import BundleModel, _load_pyfunc

__all__ = ["BundleModel", "_load_pyfunc"]
