"""fallow finds GPUs that lie fallow in a Kubernetes cluster and puts them back to work, politely."""

__version__ = "0.1.0"
