# One image for all parts. It holds Python, the shared libraries that Python needs, the locked dependencies and
# Swapwarden: no shell, no package manager, no pip, no compiler.
#
# BASE is any Debian with Python 3.11 or newer that can make virtual environments. Only files chosen by
# deploy/image/rootfs.py go from it into the image.
ARG BASE=python:3.13-slim

FROM ${BASE} AS build
WORKDIR /build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1 PIP_ONLY_BINARY=:all: PIP_ROOT_USER_ACTION=ignore

# The secrets are optional: a pip.conf that names a mirror, and the certificates to trust where an index has its own CA.
COPY locks/runtime.txt deploy/image/build-system.txt deploy/image/rootfs.py ./
RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=ca.pem set -eu; \
    if [ -s /run/secrets/pip.conf ]; then export PIP_CONFIG_FILE=/run/secrets/pip.conf; fi; \
    if [ -s /run/secrets/ca.pem ]; then export PIP_CERT=/run/secrets/ca.pem; fi; \
    python3 -m venv tools; \
    tools/bin/pip install -q --require-hashes -r build-system.txt; \
    python3 -m venv --without-pip /opt/swapwarden; \
    tools/bin/pip --python /opt/swapwarden/bin/python install -q --no-deps --require-hashes -r runtime.txt; \
    find /opt/swapwarden/bin -mindepth 1 ! -name 'python*' -delete; \
    mkdir -p /layers/system /layers/dependencies/opt; \
    python3 rootfs.py system /opt/swapwarden /layers/system; \
    cp -a /opt/swapwarden /layers/dependencies/opt; \
    python3 rootfs.py finish /layers/system /layers/dependencies

COPY pyproject.toml README.md LICENSE ./
COPY crds crds
COPY operator operator
RUN set -eu; \
    tools/bin/pip wheel -q --no-index --no-deps --no-build-isolation --wheel-dir wheels .; \
    tools/bin/pip --python /opt/swapwarden/bin/python install -q --no-index --no-deps --find-links wheels \
        --prefix /layers/swapwarden/opt/swapwarden swapwarden; \
    python3 rootfs.py finish /layers/swapwarden

FROM scratch
# What changes least comes first: a node that has the last version fetches little.
COPY --from=build /layers/system/ /
COPY --from=build /layers/dependencies/ /
COPY --from=build /layers/swapwarden/ /
ENV PATH=/opt/swapwarden/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["swapwarden"]
ARG VERSION=unknown
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
ARG SOURCE=unknown
LABEL org.opencontainers.image.title=swapwarden \
      org.opencontainers.image.description="Per-pod swap policy for Kubernetes, enforced on every node and explained" \
      org.opencontainers.image.licenses=Apache-2.0 \
      org.opencontainers.image.version=${VERSION} \
      org.opencontainers.image.revision=${REVISION} \
      org.opencontainers.image.created=${CREATED} \
      org.opencontainers.image.source=${SOURCE}
