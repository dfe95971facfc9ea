# syntax=docker/dockerfile:1
# Any image of Debian or Ubuntu with Python 3.11 or newer as `python3`. `deploy/build-image.sh`, which also makes the published image, builds on
# Debian's own.
ARG PYTHON_IMAGE=docker.io/library/python:3.13.15-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
# Extras of the package `moongate`, separated by commas.
ARG EXTRAS=postgres,telemetry,temporal,s3,cedar
# For a build without network: PIP_NO_INDEX=1 and PIP_FIND_LINKS=FOLDER.
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY gateway gateway
COPY agents agents
COPY skills skills
COPY config config
COPY deploy/sbom.py deploy/health.py deploy/
RUN python3 -m venv /opt/moongate \
 && /opt/moongate/bin/pip install ".[${EXTRAS}]" \
 && /opt/moongate/bin/pip uninstall --yes pip \
 && find /opt/moongate -depth -name 'setuptools*' -prune -exec rm -rf {} + \
 && /opt/moongate/bin/python -m compileall -q /opt/moongate/lib
# The SBOM lists the Python packages, those of Debian and the interpreter, in the format CycloneDX 1.6.
RUN python3 -m venv /opt/sbom \
 && /opt/sbom/bin/pip install "cyclonedx-bom>=7,<8" \
 && mkdir -p /opt/moongate/share/moongate \
 && /opt/sbom/bin/cyclonedx-py environment --output-reproducible --output-format JSON \
    --output-file /opt/moongate/share/moongate/sbom.cdx.json /opt/moongate/bin/python \
 && python3 -I deploy/sbom.py /opt/moongate/share/moongate/sbom.cdx.json \
 && install -m 0644 deploy/health.py /opt/moongate/share/moongate/health.py

FROM ${PYTHON_IMAGE}
ARG REVISION
LABEL org.opencontainers.image.title="Moongate" \
      org.opencontainers.image.description="One MCP endpoint for agents, skills, workflows and remote MCP servers" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.revision="${REVISION}"
# Without `useradd`, which small base images do not have.
RUN echo 'moongate:x:10001:10001:Moongate:/var/lib/moongate:/usr/sbin/nologin' >> /etc/passwd \
 && echo 'moongate:x:10001:' >> /etc/group \
 && install -d -o 10001 -g 10001 -m 0700 /var/lib/moongate \
 && install -d -m 0755 /etc/moongate
COPY --from=build /opt/moongate /opt/moongate
ENV PATH=/opt/moongate/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/var/lib/moongate \
    XDG_STATE_HOME=/var/lib \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# A number, so that Kubernetes can check `runAsNonRoot`.
USER 10001:10001
WORKDIR /etc/moongate
# Everything that the gateway writes, besides temporary files in /tmp. The root file system can be read-only.
VOLUME /var/lib/moongate
EXPOSE 8765
STOPSIGNAL SIGTERM
# Over HTTP, or HTTPS if the configuration has `server.http.tls`.
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s --retries=3 \
  CMD ["python", "-I", "/opt/moongate/share/moongate/health.py"]
ENTRYPOINT ["moongate"]
CMD ["run", "--http", "0.0.0.0:8765"]
