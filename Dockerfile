# Two images: `core` runs the dispatcher, workers, predictors and the NATS server; `tagger` has the
# length model's runtime besides. No compiler, no package index and no root in either. Needs nothing
# of BuildKit. A third one, `vllm`, puts our package into vLLM's own image.
#
#   docker build --target core -t astrolabe/core .
#   docker build --target tagger -t astrolabe/tagger .
#
# To pin the base by digest: --build-arg PYTHON_IMAGE=python:3.11-slim-bookworm@sha256:...
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
ARG VLLM_IMAGE=vllm/vllm-openai:v0.32.0

# Dependencies first, at the versions that the tests run with: this layer lasts until they change.
FROM ${PYTHON_IMAGE} AS dependencies
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY pyproject.toml constraints.txt ./
RUN python -c "import tomllib; \
p = tomllib.load(open('pyproject.toml', 'rb'))['project']; e = p['optional-dependencies']; \
open('core.txt', 'w').write('\n'.join(p['dependencies'] + e['openai'])); \
open('tagger.txt', 'w').write('\n'.join(e['onnx'])); \
open('build.txt', 'w').write('\n'.join(tomllib.load(open('pyproject.toml', 'rb'))['build-system']['requires']))"
RUN python -m venv --without-pip /opt/astrolabe \
 && python -m pip --python /opt/astrolabe/bin/python install -c constraints.txt -r core.txt

FROM dependencies AS dependencies-tagger
RUN python -m pip --python /opt/astrolabe/bin/python install -c constraints.txt -r tagger.txt

# The wheel, made once for both.
FROM dependencies AS wheel
RUN python -m venv /opt/build && /opt/build/bin/python -m pip install -r build.txt
COPY . .
RUN /opt/build/bin/python -m pip wheel --no-deps --no-build-isolation -w /wheels .

FROM dependencies AS core-environment
COPY --from=wheel /wheels /wheels
RUN python -m pip --python /opt/astrolabe/bin/python install --no-deps /wheels/*.whl

FROM dependencies-tagger AS tagger-environment
COPY --from=wheel /wheels /wheels
RUN python -m pip --python /opt/astrolabe/bin/python install --no-deps /wheels/*.whl

FROM ${PYTHON_IMAGE} AS base
# The network's name server before the hosts file: `--instance @dns` asks for the name of its own
# address, and the hosts file would answer with the container's random one.
RUN sed -i 's/^hosts:.*/hosts: dns files/' /etc/nsswitch.conf \
 && groupadd --gid 10001 astrolabe \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent astrolabe \
 && install -d -o 10001 -g 10001 /data
ENV PATH=/opt/astrolabe/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /data
ENTRYPOINT ["astrolabe"]

FROM base AS core
COPY --from=core-environment /opt/astrolabe /opt/astrolabe

FROM base AS tagger
COPY --from=tagger-environment /opt/astrolabe /opt/astrolabe

# vLLM in the worker's process. Its own versions stay: no constraints here. Last, so that nobody
# pulls that image for the two above.
FROM ${VLLM_IMAGE} AS vllm
COPY --from=wheel /wheels /wheels
RUN python3 -m pip install --no-cache-dir /wheels/*.whl \
 && sed -i 's/^hosts:.*/hosts: dns files/' /etc/nsswitch.conf
ENTRYPOINT ["astrolabe"]
