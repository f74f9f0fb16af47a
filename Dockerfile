# The image of the Kubernetes scheduler: docker build --tag registry.example.com/stead:0.1.0 .

FROM python:3.11-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .
RUN python -m venv /opt/stead \
    && wheel=$(ls /wheels/stead-*.whl) \
    && /opt/stead/bin/pip install --no-cache-dir "$wheel[kubernetes,flow]"

FROM python:3.11-slim
RUN groupadd --gid 65532 stead \
    && useradd --uid 65532 --gid 65532 --no-create-home --shell /usr/sbin/nologin stead
COPY --from=build /opt/stead /opt/stead
ENV PATH=/opt/stead/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
EXPOSE 10259
ENTRYPOINT ["stead"]
