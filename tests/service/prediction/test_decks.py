"""The versions that requests are given to, in the shares of the traffic."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from lockstep.service.prediction.decks import Deck
from lockstep.service.store import Share, Traffic


def traffic(**percents: int) -> Traffic:
    return tuple(Share(version=name, uid=f"uid-{name}", percent=percent) for name, percent in percents.items())


@pytest.mark.parametrize(
    ("percents", "period"),
    [({"v1": 100}, 1), ({"v1": 50, "v2": 50}, 2), ({"v1": 90, "v2": 10}, 10), ({"v1": 67, "v2": 32, "v3": 1}, 100)],
)
def test_the_shares_hold_exactly_over_each_period(percents: dict[str, int], period: int) -> None:
    deck = Deck(traffic(**percents), shuffle=random.Random(1).shuffle)
    for _ in range(5):
        dealt = Counter(deck.deal() for _ in range(period))
        assert dealt == {name: percent * period // 100 for name, percent in percents.items()}


def test_the_order_within_a_period_is_random() -> None:
    deck = Deck(traffic(v1=90, v2=10), shuffle=random.Random(1).shuffle)
    places = {[deck.deal() for _ in range(10)].index("v2") for _ in range(200)}
    assert places == set(range(10)), "a caller with every tenth request does not meet one version alone"


def test_a_deck_knows_which_versions_have_traffic() -> None:
    deck = Deck(traffic(v1=99, v2=1), shuffle=list.sort)
    assert "v1" in deck
    assert "v2" in deck
    assert "v3" not in deck
