"""PyTorch through fusec."""

from ._backend import fusec_backend as backend
