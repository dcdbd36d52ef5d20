from __future__ import annotations

from swapwarden.agent.reconcile.settings import SETTINGS
from swapwarden.api import names, state
from swapwarden.policy import plan
from swapwarden.policy.node import settings

from tests.unit.objects import GI, facts
from tests.unit.objects import profile as compiled
from tests.unit.policy.profile.test_compiled import made

ALL = {
    "swappiness": 60,
    "minFreeKbytes": 131072,
    "watermarkScaleFactor": 100,
    "pageCluster": 0,
    "zswap": {"enabled": True, "compressor": "zstd", "maxPoolPercent": 20},
}
FILES = {
    "vm.swappiness": "60",
    "vm.min_free_kbytes": "131072",
    "vm.watermark_scale_factor": "100",
    "vm.page-cluster": "0",
    "zswap.enabled": "Y",
    "zswap.compressor": "zstd",
    "zswap.max_pool_percent": "20",
}


def asked(**fields: object) -> dict[str, str]:
    return dict(made({"kernel": fields}).node.kernel)


def test_what_a_profile_asks_for_is_what_the_files_take() -> None:
    assert asked(**ALL) == FILES
    assert asked(zswap={"enabled": False}) == {"zswap.enabled": "N"}
    assert asked() == asked(zswap={}) == {}


def test_the_agent_knows_every_setting_that_a_profile_can_ask_for() -> None:
    assert FILES.keys() == SETTINGS.keys()
    assert all(SETTINGS[name].values.fullmatch(value) for name, value in FILES.items())
    assert len(FILES) <= state.MAX_SETTINGS


def test_what_would_make_the_node_unusable_is_kept_from_it() -> None:
    most = 8 * GI // 20 // 1024
    assert settings.plan_kernel([(settings.MIN_FREE, str(most))], facts()) == settings.KernelPlan(
        {settings.MIN_FREE: str(most)}, {}
    )
    refused = settings.plan_kernel([(settings.MIN_FREE, str(most + 1)), ("vm.swappiness", "60")], facts())
    assert refused.values == {"vm.swappiness": "60"}
    assert refused.refused[settings.MIN_FREE].startswith(f"{most + 1} KiB ")
    assert f"at most {most}," in refused.refused[settings.MIN_FREE]
    assert len(refused.refused[settings.MIN_FREE]) <= 256


def test_nothing_is_planned_for_a_node_that_does_not_say_how_much_memory_it_has() -> None:
    found = settings.plan_kernel([(settings.MIN_FREE, "131072")], facts(memory_bytes=0))
    assert found.values == {}
    assert "has not reported its memory" in found.refused[settings.MIN_FREE]


def test_a_plan_has_the_settings_and_a_plan_to_restore_has_none() -> None:
    made = compiled(names.Behavior.KUBELET, kernel=(("vm.swappiness", "60"), (settings.MIN_FREE, "999999999")))
    planned = plan.explain_node(made, facts(), [])
    assert planned.header.kernel_settings == {"vm.swappiness": "60"}
    assert planned.refused.keys() == {settings.MIN_FREE}
    assert plan.restore_node(made).kernel_settings == {}
