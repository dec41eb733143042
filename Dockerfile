# The server on an NVIDIA GPU: it serves MODEL at port 8000, records what clients sample, and trains on what they submit.
#   docker build -t arttrace-server .
#   docker run --gpus all -p 8000:8000 -e MODEL=Qwen/Qwen2.5-7B-Instruct -v checkpoints:/home/arttrace/checkpoints \
#       --stop-timeout 600 arttrace-server
# The key that clients need is printed at the start, unless ARTTRACE_API_KEY gives one.
FROM python:3.11-slim-bookworm

# vLLM and Triton compile kernels when they first run.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

COPY requirements/cuda.txt /opt/arttrace/requirements/cuda.txt
RUN pip install --no-cache-dir --no-deps -r /opt/arttrace/requirements/cuda.txt

COPY pyproject.toml README.md LICENSE /opt/arttrace/
COPY arttrace /opt/arttrace/arttrace
COPY trainer /opt/arttrace/trainer
COPY examples/market /opt/arttrace/examples/market
RUN pip install --no-cache-dir --no-deps /opt/arttrace \
    && useradd --create-home --uid 10001 arttrace \
    && install --directory --owner=arttrace --mode=0700 /home/arttrace/checkpoints /home/arttrace/.cache

USER 10001
WORKDIR /home/arttrace
VOLUME ["/home/arttrace/checkpoints", "/home/arttrace/.cache"]
EXPOSE 8000
# As Ctrl-C: the step under way is made and saved first.
STOPSIGNAL SIGINT
HEALTHCHECK --interval=15s --timeout=5s --start-period=30m \
    CMD ["python", "-c", "from urllib.request import *; build_opener(ProxyHandler({})).open('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["art-server", "--host", "0.0.0.0", "--port", "8000", "--gpu"]
