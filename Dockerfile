# Rivulet's container image: server and command with their libraries, as a user without rights, on a read-only root.
#   docker build -t rivulet .                          the server; mount a model directory at /models
#   docker build -t rivulet-mnist --target with-model --build-arg MODEL=model/zoo/mnist-linear .
# podman and buildah: the same arguments, and --format docker (the OCI format has no health check).
#
# With CUDA: two other bases of one distribution whose packages deploy/setup.sh knows, one with nvcc, one without:
#   docker build -t rivulet-cuda --build-arg CUDA=ON --build-arg BASE=nvidia/cuda:13.0.1-devel-ubuntu24.04
#     --build-arg RUNTIME=nvidia/cuda:13.0.1-base-ubuntu24.04 .
# deploy/image_test.sh builds and runs the CPU image. Of CUDA=ON it builds the first stage, on Debian with the machine's
# toolkit in the place where those bases have theirs; the bases themselves it cannot fetch, so they are not tested.
ARG BASE=debian:bookworm-slim
ARG RUNTIME=debian:bookworm-slim

FROM ${BASE} AS packages
# As on the machines that fill the compiler cache, which keeps objects apart by it.
ENV LANG=C.UTF-8
WORKDIR /rivulet
COPY deploy/setup.sh deploy/constraints.txt deploy/
RUN --mount=type=cache,target=/ccache CCACHE_DIR=/ccache deploy/setup.sh --constraints && rm -rf /var/lib/apt/lists/*

FROM packages AS build
COPY . .
ARG CUDA=OFF
RUN --mount=type=cache,target=/ccache \
    export CCACHE_DIR=/ccache \
    && cmake --preset release -DRIVULET_TESTS=OFF -DRIVULET_UNITY=ON -DRIVULET_CUDA=${CUDA} \
    && cmake --build --preset release --target rivulet-server rivulet rivulet-grammar \
    && deploy/bundle.sh build/bundle.tar.gz \
    && tar -xzf build/bundle.tar.gz --no-same-owner -C /opt \
    && install -D -m 644 deploy/image/server.json /opt/rivulet-bundle/etc/server.json \
    && rm -rf build model/zoo/*/*.xz

FROM ${RUNTIME} AS server
COPY --from=build /opt/rivulet-bundle /opt/rivulet
ENV PATH=/opt/rivulet/bin:${PATH}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="Rivulet" \
      org.opencontainers.image.description="Inference server for linear transformers over gRPC" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
USER 65532:65532
EXPOSE 50051
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=60s --retries=3 \
    CMD ["rivulet", "health", "--target", "127.0.0.1:50051"]
# The file holds the one setting that a container needs, --listen beyond its own loopback. Arguments of `docker run`
# take the place of CMD alone, and flags win over the file.
ENTRYPOINT ["rivulet-server", "--config", "/opt/rivulet/etc/server.json"]
CMD ["--model", "/models"]

FROM server AS with-model
ARG MODEL=model/zoo/mnist-linear
# The user can read it whatever the checkout's modes are. CMake has unpacked the bundled models.
COPY --from=build --chmod=755 /rivulet/${MODEL} /models

# The last stage is what a build without --target makes.
FROM server
