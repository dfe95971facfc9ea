# syntax=docker/dockerfile:1
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY gateway gateway
COPY agents agents
COPY skills skills
COPY config config
RUN python -m venv /opt/moongate && /opt/moongate/bin/pip install --no-cache-dir .

FROM python:3.12-slim
RUN groupadd --system --gid 10001 moongate \
 && useradd --system --uid 10001 --gid moongate --home-dir /var/lib/moongate --create-home moongate \
 && mkdir -p /etc/moongate && chmod 0700 /var/lib/moongate
COPY --from=build /opt/moongate /opt/moongate
ENV PATH=/opt/moongate/bin:$PATH \
    XDG_STATE_HOME=/var/lib \
    PYTHONUNBUFFERED=1
USER moongate
WORKDIR /etc/moongate
VOLUME /var/lib/moongate
EXPOSE 8765
HEALTHCHECK --interval=30s --timeout=3s --start-period=10s \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8765/health', timeout=2)"]
ENTRYPOINT ["moongate"]
CMD ["run", "--http", "0.0.0.0:8765"]
