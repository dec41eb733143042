"""A server elsewhere (`arttrace serve --train`), as a program without torch, CUDA or root sees it."""
