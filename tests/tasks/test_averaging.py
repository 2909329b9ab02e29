"""Running averages of weights."""

import pytest
import torch
from torch import nn

from elmokit.tasks.averaging import Averages


def test_the_average_follows_the_weights_and_forgets_the_start():
    weight = nn.Parameter(torch.zeros(3))
    averages = Averages([weight])
    means = []
    for _ in range(3000):
        with torch.no_grad():
            weight.fill_(1.0)
        averages.update()
        means.append(float(averages.copies()[0][0]))
    assert means == sorted(means)
    assert means[0] == pytest.approx(0.9)  # while there were few updates, the last ones count most
    assert means[-1] > 0.99


def test_a_network_has_its_own_weights_again():
    weight = nn.Parameter(torch.tensor([1.0, 2.0]))
    averages = Averages([weight])
    with torch.no_grad():
        weight += 10
    averages.update()

    def fail():
        with averages.in_use():
            assert weight.tolist() == pytest.approx([10.0, 11.0])
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert weight.tolist() == [11.0, 12.0]
    assert averages.copies()[0].tolist() == pytest.approx([10.0, 11.0])
