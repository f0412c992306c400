# `calibrant serve` as a container: no compiler, no plotting, no torch; runs as nobody on a read-only file system.
#
#   docker build -t calibrant .                                        # JSON and npy bodies
#   docker build -t calibrant --build-arg MORE="pyarrow numba" .       # Arrow bodies, compiled kernels
#   docker run --rm -p 8080:8080 -v "$PWD:/artifacts:ro" calibrant
FROM python:3.11-slim AS build
ARG MORE=""
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE docker-requirements.txt ./
COPY src src
RUN python -m venv /opt/calibrant \
    && /opt/calibrant/bin/pip install --no-cache-dir -c constraints.txt -r docker-requirements.txt ${MORE} \
    && /opt/calibrant/bin/pip install --no-cache-dir --no-deps . \
    && /opt/calibrant/bin/pip uninstall --yes pip setuptools \
    && find /opt/calibrant -type d -name tests -prune -exec rm -rf {} +

FROM python:3.11-slim
LABEL org.opencontainers.image.title="calibrant" \
      org.opencontainers.image.description="Calibrated probabilities over HTTP" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/calibrant /opt/calibrant
ENV PATH=/opt/calibrant/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    CALIBRANT_PORT=8080
USER 65534:65534
WORKDIR /artifacts
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ['CALIBRANT_PORT'] + '/health', timeout=2)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["calibrant", "serve"]
CMD ["/artifacts/cal.safetensors", "--host", "0.0.0.0", "--port", "8080", "--drain", "5"]
