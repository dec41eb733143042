"""Serving: the vLLM process, the server that joins it with the gateway, and the way other processes reach them."""

from trainer.serving.child import Serving, start_serving
from trainer.serving.client import GatewayClient, find_serving
from trainer.serving.report import GatewayStatus, PublishReport, ServingFile

__all__ = [
    "GatewayClient",
    "GatewayStatus",
    "PublishReport",
    "Serving",
    "ServingFile",
    "find_serving",
    "start_serving",
]
