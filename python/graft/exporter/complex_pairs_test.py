"""Programs with complex numbers inside, against eager PyTorch."""

import pytest
import torch

import graft
from graft.exporter.complex_pairs import without_complex


class Rotary(torch.nn.Module):
    """As Llama 4 and DeepSeek V2 write it."""

    def forward(self, x, angles):
        turns = torch.polar(torch.ones_like(angles), angles)
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns[:, :, None, :]).flatten(3).type_as(x)


class Table(torch.nn.Module):
    """With a constant, and parts that are moved before they are taken apart."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(4, 6, dtype=torch.complex64))

    def forward(self, x):
        z = torch.complex(x, x.sin()).transpose(0, 1)
        z = torch.cat([z, self.table.conj()], 0)[1:].unsqueeze(1)
        first, second = z.chunk(2, -1)
        return first.real, (second * (2 - 1j)).abs(), second.angle(), torch.view_as_real(z.squeeze(1))


class Arithmetic(torch.nn.Module):
    def forward(self, x, y):
        a, b = torch.view_as_complex(x), torch.view_as_complex(y)
        made = (a + b * 2 - b.conj() / (a * a + 3), a / y[:, 0], y[:, 1] * a + 1, -(a.exp()), 1 / b, y[:, :1] - a)
        return [torch.view_as_real(one.resolve_conj()) for one in made]


class Product(torch.nn.Module):
    def forward(self, x, y):
        a, b = torch.view_as_complex(x), torch.view_as_complex(y)
        made = (a @ b.transpose(0, 1), a @ y[..., 0].transpose(0, 1).to(torch.complex64))
        return [torch.view_as_real(one) for one in made]


class Fourier(torch.nn.Module):
    """As FNet writes it, and transforms of one dimension."""

    def forward(self, x):
        made = torch.fft.fftn(x, dim=(1, 2)).real
        z = torch.fft.fft(torch.complex(x, x.cos()), dim=1, norm="ortho")
        others = torch.fft.ifft(z, dim=1), torch.fft.rfft(x), torch.fft.ifft2(z, norm="forward"), torch.fft.fftn(z, norm="forward")
        return [made, *(torch.view_as_real(one) for one in (z, *others))]


CASES = {
    "rotary": (Rotary(), lambda: (torch.randn(2, 3, 4, 8), torch.randn(2, 3, 4))),
    "table": (Table(), lambda: (torch.randn(6, 5),)),
    "arithmetic": (Arithmetic(), lambda: (torch.randn(5, 2), torch.randn(5, 2))),
    "fourier": (Fourier(), lambda: (torch.randn(2, 7, 12),)),
    "product": (Product(), lambda: (torch.randn(4, 3, 2), torch.randn(5, 3, 2))),
}


@pytest.mark.parametrize("name", CASES)
def test_exact(name, tmp_path):
    torch.manual_seed(0)
    model, arguments = CASES[name][0].eval(), CASES[name][1]()
    graft.export(model, arguments, path=tmp_path / "net.pte")
    found, expected = graft.load(tmp_path / "net.pte")(*arguments), model(*arguments)
    single = isinstance(expected, torch.Tensor)
    for a, b in zip([expected] if single else expected, [found] if single else found):
        assert a.shape == b.shape and a.dtype == b.dtype
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_transforms_of_open_sizes(tmp_path):
    class Net(torch.nn.Module):
        def forward(self, x):
            return torch.fft.fftn(x, dim=(1, 2)).real, torch.fft.rfft(x, dim=1, norm="ortho").abs()

    auto = torch.export.Dim.AUTO
    graft.export(Net(), (torch.randn(3, 7, 6),), dynamic_shapes=({0: auto, 1: auto},), path=tmp_path / "net.pte")
    net = graft.load(tmp_path / "net.pte")
    for sizes in ((3, 7, 6), (1, 64, 6), (2, 501, 6)):
        x = torch.randn(sizes)
        for a, b in zip(Net()(x), net(x)):
            assert a.shape == b.shape
            torch.testing.assert_close(a, b, atol=2e-5 * float(a.abs().max()), rtol=0)


def test_the_program_that_is_given_stays():
    program = torch.export.export(Table(), (torch.randn(6, 5),))
    before = str(program.graph)
    assert without_complex(program) is not program
    assert str(program.graph) == before and program.state_dict["table"].is_complex()


def test_what_has_no_pair_is_refused_by_name(tmp_path):
    class Logarithm(torch.nn.Module):
        def forward(self, x):
            return torch.view_as_real(torch.view_as_complex(x).log())

    program = torch.export.export(Logarithm(), (torch.randn(3, 2),))
    assert without_complex(program) is program
    with pytest.raises(graft.ExportError, match="complex64"):
        graft.export(Logarithm(), (torch.randn(3, 2),), path=tmp_path / "net.pte")


def test_a_real_program_is_given_back():
    program = torch.export.export(torch.nn.Linear(3, 2), (torch.randn(4, 3),))
    assert without_complex(program) is program
