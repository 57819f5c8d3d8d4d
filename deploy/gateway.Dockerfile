# SPDX-License-Identifier: Apache-2.0
# The image of rivulet-gateway: HTTP in front of a rivulet-server, as a user without rights, on a read-only root.
#   docker build -t rivulet-gateway -f deploy/gateway.Dockerfile .
#   docker run --read-only --cap-drop ALL -p 127.0.0.1:8000:8000 rivulet-gateway --target SERVER:50051 --allowed-host localhost
# podman and buildah: add --format docker (the OCI format has no health check) and
# --ignorefile deploy/gateway.Dockerfile.dockerignore.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS python
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt/* /var/log/dpkg.log

FROM python AS packages
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates python3-venv \
    && rm -rf /var/lib/apt/lists/*

FROM packages AS build
WORKDIR /rivulet
COPY LICENSE ./
COPY docs docs
COPY proto proto
COPY client/python client/python
# The releases that the tests run with.
COPY tests/requirements.txt constraints.txt
RUN python3 -m venv /opt/rivulet-gateway \
    && PIP_CONSTRAINT=constraints.txt /opt/rivulet-gateway/bin/pip install --no-cache-dir './client/python[gateway]' \
    && /opt/rivulet-gateway/bin/pip uninstall -y pip setuptools

FROM python
COPY --from=build /opt/rivulet-gateway /opt/rivulet-gateway
ENV PATH=/opt/rivulet-gateway/bin:${PATH} PYTHONDONTWRITEBYTECODE=1
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="Rivulet gateway" \
      org.opencontainers.image.description="OpenAI's HTTP API in front of a Rivulet server" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
USER 65532:65532
EXPOSE 8000
STOPSIGNAL SIGTERM
# Healthy while the server behind it is: /health answers 503 otherwise.
HEALTHCHECK --interval=10s --timeout=6s --start-period=60s --retries=3 \
    CMD ["python3", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=5)"]
# The arguments of `docker run` follow; --target is required.
ENTRYPOINT ["rivulet-gateway", "--listen", "0.0.0.0:8000"]
