"""The client side of a server elsewhere (`arttrace serve --train`), for programs without torch, CUDA or root."""
