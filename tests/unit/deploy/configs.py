"""The settings of each service, for tests of what starts them."""

from services.drafter.config import Config as DrafterConfig
from services.gateway.config import Config as GatewayConfig
from services.scheduler.config import Config as SchedulerConfig
from services.worker.config import Config as WorkerConfig

CONFIGS = {
    "gateway": GatewayConfig,
    "scheduler": SchedulerConfig,
    "worker": WorkerConfig,
    "drafter": DrafterConfig,
}
