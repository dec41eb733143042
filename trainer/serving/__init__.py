"""Serving: the vLLM process, the server that joins it with the gateway, and the way other processes reach them."""

from trainer.gateway.status import GatewayStatus, PublishReport, ServingFile
from trainer.serving.client import GatewayClient, find_serving
from trainer.serving.start import Serving, start_serving

__all__ = [
    "GatewayClient",
    "GatewayStatus",
    "PublishReport",
    "Serving",
    "ServingFile",
    "find_serving",
    "start_serving",
]
