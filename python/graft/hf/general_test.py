import torch

from graft.hf import general


class _Counting(torch.nn.Module):
    def compute_3d_position_ids(self, input_ids, attention_mask=None):
        return input_ids.cumsum(-1) if attention_mask is None else None


class _CountingBySizes(torch.nn.Module):
    def compute_3d_position_ids(self, input_ids, inputs_embeds):
        assert inputs_embeds.shape[:2] == input_ids.shape
        return input_ids + 1


def test_positions_that_the_model_counts():
    """Its method gets what it takes alone: not all take inputs_embeds (HunYuan-VL)."""
    given = {"input_ids": torch.tensor([[1, 2, 3]])}
    found = general._with_positions(torch.nn.Sequential(_Counting()), given)
    assert torch.equal(found["position_ids"], torch.tensor([[1, 3, 6]]))
    found = general._with_positions(torch.nn.Sequential(_CountingBySizes()), given)
    assert torch.equal(found["position_ids"], torch.tensor([[2, 3, 4]]))
    masked = {**given, "attention_mask": torch.ones(1, 3)}
    assert general._with_positions(torch.nn.Sequential(_Counting()), masked) is masked
