"""Exports a PyTorch model to ONNX, checks the file, and compares its results with PyTorch's.

Source: PyTorch, `torch.onnx.export`; ONNX, `onnx.checker`; ONNX Runtime.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import pickle
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.core.files import replacing
from rayjobs.injob.lazy_dataclass import dataclass

if TYPE_CHECKING:
    import torch

SUFFIXES = (".pt2", ".pt", ".pth", ".bin", ".ckpt")
TOLERANCE = 1e-3
"""How far ONNX Runtime's results may be from PyTorch's, relative to the largest of them or to 1."""
_STATE_KEYS = ("state_dict", "model_state_dict", "model")


@dataclass(frozen=True)
class Exported:
    """The result of an export.

    Attributes:
        path: The ONNX file.
        opset: Version of the ONNX operators.
        inputs: Names of the inputs; `outputs` likewise.
        difference: The largest difference from PyTorch's results; None if ONNX Runtime is not
            installed, so that they were not compared.
    """

    path: Path
    opset: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    difference: float | None


def export(
    source: Path,
    target: Path,
    *,
    shapes: Sequence[Sequence[int]],
    code: str | None = None,
    allow_pickle: bool = False,
    opset: int | None = None,
    fixed_batch: bool = False,
    on_stage: Callable[[str], None] = lambda _text: None,
) -> Exported:
    """Export a model's file to ONNX.

    Args:
        source: A file, or a folder with one such file: an exported program (`.pt2`), TorchScript,
            or weights (a state dict).
        target: The ONNX file; an existing file is replaced once the new one is written and checked.
        shapes: Shape of each input (float32); the first dimension is the batch.
        code: For weights, `FILE.py:NAME`: a class or function without parameters that creates the
            module. Only the file's imports, classes, functions and constants are executed.
        allow_pickle: Load a module that was saved whole, which runs code from the file.
        opset: Version of the ONNX operators; None means PyTorch's default.
        fixed_batch: Fix the batch size instead of leaving it open.
        on_stage: Called with each stage as it begins; a large model takes minutes.

    Raises:
        NotFoundError: there is no such file.
        UsageError: the file is not a model that can be exported, a package is missing, or the
            results differ from PyTorch's.
    """
    on_stage("loading PyTorch and ONNX")
    torch = _needed("torch")
    _needed("onnx")
    _needed("onnxscript")
    on_stage("reading the model")
    module = _load(_file_of(source), torch, code, allow_pickle=allow_pickle)
    if not shapes:
        raise UsageError("give the shape of each input, such as --input 1,1,28,28")
    inputs = tuple(torch.randn(*shape) for shape in shapes)
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as draft:
        on_stage("writing ONNX")
        _write(torch, module, inputs, draft, opset, fixed_batch=fixed_batch)
        on_stage("checking the result against PyTorch")
        done = _checked(torch, module, inputs, Path(draft), fixed_batch=fixed_batch)
    return Exported(target, *done)


def _needed(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UsageError(
            f"exporting to ONNX needs {package}, which is not installed; install rayjobs[onnx]"
        ) from error


def _file_of(source: Path) -> Path:
    if source.is_file():
        return source
    if not source.is_dir():
        raise NotFoundError(f"there is no {source}")
    found = sorted(path for path in source.rglob("*") if path.suffix in SUFFIXES)
    if len(found) != 1:
        named = ", ".join(path.name for path in found[:5]) or "none"
        raise UsageError(
            f"the model has {len(found)} PyTorch files ({named}); choose one with --file"
        )
    return found[0]


def _load(path: Path, torch: Any, code: str | None, *, allow_pickle: bool) -> Any:
    if path.suffix == ".pt2":
        return torch.export.load(str(path)).module()
    with contextlib.suppress(RuntimeError), warnings.catch_warnings():  # it is not TorchScript
        warnings.simplefilter("ignore")
        return torch.jit.load(str(path), map_location="cpu").eval()
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if not allow_pickle:
            raise UsageError(
                f"{path.name} contains more than weights, so loading it runs code from the file. "
                f"If you trust it, add --allow-pickle; better, save model.state_dict() and give "
                f"--code"
            ) from error
        if code is not None:
            _module_of(code.rpartition(":")[0])  # its classes must be known
        loaded = torch.load(path, map_location="cpu", weights_only=False)
    if isinstance(loaded, torch.nn.Module):
        return loaded.eval()
    if not isinstance(loaded, dict):
        raise UsageError(f"{path.name} holds a {type(loaded).__name__}, which is not a model")
    if code is None:
        raise UsageError(
            f"{path.name} contains only weights; name the class or function that creates their "
            f"module, such as --code train.py:Net"
        )
    module = _made(code)
    for key in _STATE_KEYS:
        if isinstance(loaded.get(key), dict):
            loaded = loaded[key]
            break
    # DistributedDataParallel adds a prefix to each name.
    weights = {str(name).removeprefix("module."): value for name, value in loaded.items()}
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        raise UsageError(f"the weights of {path.name} are not those of {code}: {error}") from error
    return module.eval()


def _made(code: str) -> Any:
    file, colon, name = code.rpartition(":")
    if not colon:
        raise UsageError(f"--code is {code!r}; write FILE.py:NAME")
    found = getattr(_module_of(file), name, None)
    if found is None:
        raise UsageError(f"{file} defines no {name}")
    try:
        return found()
    except TypeError as error:
        raise UsageError(f"{code} cannot be called without arguments: {error}") from error
    except NameError as error:
        raise UsageError(
            f"{code} cannot be made from the definitions of {file} alone: {error}. Only its "
            f"imports, classes, functions and constants are used, so that no training starts here; "
            f"define {name} in a file that needs no more"
        ) from error


def _module_of(file: str) -> Any:
    """Return the definitions of a file as a module; nothing else in the file is executed."""
    path = Path(file).absolute()
    if not path.is_file():
        raise NotFoundError(f"there is no {path}")
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{path} is not a Python file: {error}") from error
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))  # it may import its neighbors
    for statement in filter(_defines, tree.body):
        one = ast.Module([statement], type_ignores=[])
        try:
            exec(compile(one, str(path), "exec"), module.__dict__)  # noqa: S102 - the user named it
        except NameError:
            continue  # needs what only a run defines; whatever uses it is reported by name
        except ImportError as error:
            raise UsageError(f"{file} cannot be used: {error}") from error
    return module


def _defines(statement: ast.stmt) -> bool:
    """Whether a statement defines something, and does nothing else that matters."""
    if isinstance(statement, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef):
        return True
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        calls = (ast.Call, ast.Await, ast.Yield)
        return statement.value is not None and not any(
            isinstance(one, calls) for one in ast.walk(statement.value)
        )
    if isinstance(statement, ast.Try):  # the usual way to import an optional package
        return all(isinstance(one, ast.Import | ast.ImportFrom) for one in statement.body)
    return False


def _write(
    torch: Any,
    module: Any,
    inputs: tuple[torch.Tensor, ...],
    draft: str,
    opset: int | None,
    *,
    fixed_batch: bool,
) -> None:
    import logging

    dynamic = None
    if not fixed_batch:
        batch = torch.export.Dim("batch")
        dynamic = tuple({0: batch} for _ in inputs)
    names = [f"input_{number}" if number else "input" for number in range(len(inputs))]
    options: dict[str, Any] = {} if opset is None else {"opset_version": opset}
    if isinstance(module, torch.jit.ScriptModule):
        axes = None if fixed_batch else {name: {0: "batch"} for name in [*names, "output"]}
        options |= {"dynamo": False, "dynamic_axes": axes}
    else:
        options |= {"dynamo": True, "dynamic_shapes": dynamic, "verbose": False}
        options |= {"external_data": False}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module, inputs, draft, input_names=names, output_names=["output"], **options
            )
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise UsageError(
            f"PyTorch cannot export this model with inputs of {[list(i.shape) for i in inputs]}: "
            f"{type(error).__name__}: {first}"
        ) from error


def _checked(
    torch: Any, module: Any, inputs: tuple[torch.Tensor, ...], draft: Path, *, fixed_batch: bool
) -> tuple[int, tuple[str, ...], tuple[str, ...], float | None]:
    import onnx

    written = onnx.load(str(draft))
    onnx.checker.check_model(written)
    names = tuple(one.name for one in written.graph.input)
    outputs = tuple(one.name for one in written.graph.output)
    opset = max(one.version for one in written.opset_import if one.domain in ("", "ai.onnx"))
    try:
        import onnxruntime
    except ImportError:
        return opset, names, outputs, None
    session = onnxruntime.InferenceSession(str(draft), providers=["CPUExecutionProvider"])
    tried = [inputs]
    if not fixed_batch:  # a batch of another size than the traced one
        tried.append(tuple(torch.cat([one, one * 0.5]) for one in inputs))
    worst = 0.0
    for given in tried:
        found = session.run(None, {n: one.numpy() for n, one in zip(names, given, strict=True)})
        with torch.no_grad():
            expected = module(*given)
        expected = [expected] if torch.is_tensor(expected) else list(expected)
        for mine, theirs in zip(found, expected, strict=True):
            difference = float((torch.from_numpy(mine) - theirs).abs().max())
            largest = max(1.0, float(theirs.abs().max()))
            worst = max(worst, difference)
            if not difference <= TOLERANCE * largest:
                raise UsageError(
                    f"the results of ONNX Runtime differ from PyTorch's by up to {difference:g}; "
                    f"nothing was written"
                )
    return opset, names, outputs, worst
