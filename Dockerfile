# One image per service: docker build --build-arg SERVICE=gateway -t outrider-gateway .
# SERVICE is gateway, scheduler, worker or drafter. The worker's image holds torch, and with --build-arg EXTRAS=gpu
# what GPU kernels need; a drafter's holds torch with EXTRAS=model, which a draft model or a draft head needs.
FROM python:3.11-slim-bookworm AS build

# Where pip looks, for builds that reach an index in another way than pip's default.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_TRUSTED_HOST
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# What the code needs comes before the code, so that a change of code installs nothing again.
WORKDIR /source
COPY LICENSE README.md constraints.txt pyproject.toml ./
COPY outrider/__init__.py outrider/
RUN python -m venv /opt/venv \
    && /opt/venv/bin/pip install -c constraints.txt ".[serve]"

ARG SERVICE
ARG EXTRAS
RUN case "$SERVICE/$EXTRAS" in \
      worker/ | drafter/model) /opt/venv/bin/pip install -c constraints.txt ".[serve,model]" ;; \
      worker/gpu) /opt/venv/bin/pip install -c constraints.txt ".[serve,model,gpu]" ;; \
      gateway/ | scheduler/ | drafter/) ;; \
      *) echo "SERVICE must be gateway, scheduler, worker or drafter, and EXTRAS nothing, a worker's gpu or a" \
           "drafter's model; they are '$SERVICE' and '$EXTRAS'" >&2; exit 2 ;; \
    esac
# The drafter's memory and the scheduler's controller are in C++; where there is no compiler, building brings one.
COPY native native
RUN case "$SERVICE" in drafter | scheduler) /opt/venv/bin/pip install ./native ;; esac

COPY outrider outrider
RUN /opt/venv/bin/pip install --no-deps --force-reinstall . \
    && /opt/venv/bin/pip uninstall --yes setuptools pip

COPY services/__init__.py /app/services/
COPY services/$SERVICE /app/services/$SERVICE
COPY models /app/models
# Schedulers and drafters of texts hold no model.
RUN case "$SERVICE/$EXTRAS" in \
      scheduler/ | drafter/) python -c "import shutil; shutil.rmtree('/app/models')" ;; \
    esac \
    && /opt/venv/bin/python -m compileall -q /app


FROM python:3.11-slim-bookworm

ARG SERVICE
ARG EXTRAS
# Triton compiles the module by which it talks to the driver where the driver is: when the worker starts.
RUN case "$SERVICE/$EXTRAS" in \
      worker/gpu) apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev \
        && rm -rf /var/lib/apt/lists/* ;; \
    esac

# A container listens to its network. HOME is what a read-only container can write to. Threads that wait must
# not spin: they would take the cores of the process that they wait for.
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    OMP_WAIT_POLICY=PASSIVE \
    HOME=/tmp \
    SERVICE=$SERVICE \
    OUTRIDER_GATEWAY_HOST=0.0.0.0 OUTRIDER_GATEWAY_GRPC_PORT=50051 \
    OUTRIDER_SCHEDULER_HOST=0.0.0.0 OUTRIDER_SCHEDULER_GRPC_PORT=50052 \
    OUTRIDER_WORKER_HOST=0.0.0.0 OUTRIDER_WORKER_GRPC_PORT=50053 \
    OUTRIDER_DRAFTER_HOST=0.0.0.0 OUTRIDER_DRAFTER_GRPC_PORT=50054

COPY --from=build /opt/venv /opt/venv
COPY --from=build /app /app
WORKDIR /app
# For a volume that keeps what a drafter or a scheduler has learnt: an empty one takes over owner and mode.
RUN python -c "import os; os.makedirs('/var/lib/outrider', 0o700); os.chown('/var/lib/outrider', 10001, 10001)"
USER 10001:10001

HEALTHCHECK --interval=10s --timeout=10s --start-period=120s --retries=3 \
    CMD ["/bin/sh", "-c", "exec python -m outrider.rpc.probe $SERVICE"]
# The shell gives way to the service, which so gets the signals.
ENTRYPOINT ["/bin/sh", "-c", "exec python -m services.$SERVICE"]
