"""Names in files for the classes that PyTorch's own operators return (torch.max, torch.sort, ...): PyTorch registers them
with its pytrees, but without the name that writing a spec to a file needs. Importing this module adds the names."""

from __future__ import annotations

import torch
from torch.utils import _pytree as pytree


def _name_return_types() -> None:
    for cls in torch.return_types.all_return_types:
        known = pytree.SUPPORTED_SERIALIZED_TYPES.get(cls)
        if known is None or known.serialized_type_name != pytree.NO_SERIALIZED_TYPE_NAME_FOUND:
            continue
        name = f"torch.return_types.{cls.__name__}"
        pytree.SUPPORTED_SERIALIZED_TYPES[cls] = known._replace(serialized_type_name=name)
        pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE[name] = cls


_name_return_types()
