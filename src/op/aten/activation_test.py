"""Activations and clamps against eager."""

import pytest
import torch
from op_cases import ALL, FLOATS, INTEGERS, cases

aten = torch.ops.aten


def floats(case):
    tensor = case.tensor(case.shape(), case.pick(FLOATS))
    return tensor * case.pick([1, 5, 30, 200]) if case.chance(0.5) else tensor


SIMPLE = ["sigmoid", "relu", "silu", "hardsigmoid", "hardswish", "mish", "relu6"]


@pytest.mark.parametrize("name", SIMPLE)
def test_activation(name):
    @cases
    def check(case):
        case.check_or_fail(getattr(aten, name).default, (floats(case),))

    check()


@pytest.mark.parametrize("kind", ["none", "tanh"])
def test_gelu(kind):
    @cases
    def check(case):
        tensor = floats(case)
        # Of +inf eager gives NaN in f32 and infinity in f64; graft gives infinity.
        tensor = torch.where(torch.isinf(tensor), 7, tensor)
        case.check(aten.gelu.default, (tensor,), {"approximate": kind})

    check()


def test_integers_through_sigmoid_and_relu():
    @cases
    def check(case):
        tensor = case.tensor(case.shape(), case.pick([*INTEGERS, torch.bool]))
        case.check_or_fail(aten.sigmoid.default, (tensor,))
        case.check_or_fail(aten.relu.default, (tensor,))

    check()


def test_elu():
    @cases
    def check(case):
        args = (floats(case), case.pick([1.0, 0.5, 1.67]), case.pick([1.0, 1.05]), case.pick([1.0, 2.0]))
        case.check(aten.elu.default, args)

    check()


def test_leaky_relu():
    @cases
    def check(case):
        case.check(aten.leaky_relu.default, (floats(case), case.pick([0.01, 0.2, 0.0, -0.5, 1])))

    check()


def test_softplus():
    @cases
    def check(case):
        case.check(aten.softplus.default, (floats(case), case.pick([1, 0.5, 3]), case.pick([20, 1, 5.5])))

    check()


def test_hardtanh():
    @cases
    def check(case):
        tensor = case.tensor(case.shape(), case.pick([*FLOATS, torch.int64, torch.int32]))
        case.check_or_fail(aten.hardtanh.default, (tensor, case.pick([-1, -2, 0]), case.pick([1, 3, 6])))

    check()


BOUNDS = [None, 0, 1, -3, 2, 0.5, -0.5, 5.25, float("inf"), float("-inf")]


def test_clamp():
    """clamp(min=0) is not clamp(0, 1), and a lower bound above the upper one gives the upper one."""

    @cases
    def check(case):
        tensor = case.tensor(case.shape(), case.pick(ALL))
        case.check_or_fail(aten.clamp.default, (tensor, case.pick(BOUNDS), case.pick(BOUNDS)))

    check()


def test_clamp_by_tensors():
    @cases
    def check(case):
        shape = case.shape(most=2000)
        dtype = case.pick(ALL)

        def bound():
            return case.tensor([1 if case.chance(0.3) else s for s in shape], dtype) if case.chance(0.7) else None

        case.check_or_fail(aten.clamp.Tensor, (case.tensor(shape, dtype), bound(), bound()))

    check()


@pytest.mark.parametrize("target", [aten.clamp_min.default, aten.clamp_max.default], ids=str)
def test_one_bound(target):
    @cases
    def check(case):
        case.check_or_fail(target, (case.tensor(case.shape(), case.pick(ALL)), case.pick(BOUNDS[1:])))

    check()


@pytest.mark.parametrize("target", [aten.clamp_min.Tensor, aten.clamp_max.Tensor], ids=str)
def test_one_tensor_bound(target):
    @cases
    def check(case):
        shape = case.shape()
        case.check_or_fail(target, (case.tensor(shape, case.pick(ALL)), case.tensor(shape, case.pick(ALL))))

    check()


@pytest.mark.parametrize("probability", [0.0, 0.5])
def test_dropout_of_an_exported_model(probability):
    @cases
    def check(case):
        tensor = case.tensor(case.shape(), case.pick(FLOATS))
        case.check(aten.dropout.default, (tensor, probability, False))
        case.check(aten.native_dropout.default, (tensor, probability, False))

    check()
