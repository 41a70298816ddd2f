"""SparsityBuilder: define for each weight and activation of a model how it and its gradient are made sparse."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn
from torch.optim.optimizer import Optimizer

from gossamer.formats import Format, Masked, as_format
from gossamer.models.interm import FormatOutput, OperatorFormats, record_names
from gossamer.models.names import matching
from gossamer.models.rules import Rule
from gossamer.models.state import follow_all
from gossamer.models.surgery import made_sparse
from gossamer.models.weights import all_weights
from gossamer.ops.sparsified import Output
from gossamer.ops.sparsify import sparsify
from gossamer.patterns import KeepAll
from gossamer.sparsifiers import as_sparsifier

Change = Callable[[], Any]
Step = Callable[[nn.Module], Change]  # selects, and returns a function that changes the model


class SparsityBuilder:
    """Make a model sparse, weight by weight and activation by activation.

    Names are those of ``named_parameters()`` for weights and ``named_modules()`` for activations. Globs select all that
    match; for an unknown name, the error lists similar names.

    Parameters
    ----------
    model
        Any module.
    inplace
        False makes a sparse copy and doesn't change the model. True makes the model itself sparse; its parameters stay
        the same objects.
    optimizer
        With ``inplace=True``: an optimizer that already trains the model. Its state is made sparse together with the
        weights. (Otherwise this happens before the optimizer's next step.)

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> sb = gs.SparsityBuilder(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)))
    >>> sb.set_weight("0.weight", initial_sparsifier=gs.sparsifiers.ScalarFraction(0.75), out_format=gs.CSR())
    >>> sb.set_interm("1", external_sparsifier=gs.sparsifiers.ScalarThreshold(0.1), out_format=gs.COO())
    >>> sparse = sb.get_sparse_model()
    >>> sparse[0].weight.nnz
    16
    """

    def __init__(self, model: nn.Module, *, inplace: bool = False, optimizer: Optimizer | None = None) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"SparsityBuilder needs a torch.nn.Module, not {type(model).__name__}")
        if optimizer is not None and not inplace:
            raise ValueError("optimizer= is for inplace=True: a copy has parameters that no optimizer knows")
        if optimizer is not None and not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer= must be a torch.optim.Optimizer, not {type(optimizer).__name__}")
        self._model, self._inplace, self._optimizer = model, inplace, optimizer
        self._steps: dict[tuple[str, str], Step] = {}

    def set_weight(
        self,
        name: str,
        initial_sparsifier: Any = None,
        inline_sparsifier: Any = None,
        tmp_format: Format | None = None,
        external_sparsifier: Any = None,
        out_format: Format | None = None,
        every: int | None = None,
    ) -> None:
        """Make weights sparse.

        Parameters
        ----------
        name
            Parameter name or glob.
        initial_sparsifier
            Selects the values to keep at the start; keeps all by default.
        inline_sparsifier, tmp_format, external_sparsifier
            Select new positions during training (first inline into the temporary format, then external). Without them,
            or if they keep all, and without ``every``, the pattern is fixed.
        out_format
            ``gs.Masked()`` by default.
        every
            Select new positions after this number of optimizer steps (1 if there is an inline or external sparsifier).
            With ``every`` alone, the initial sparsifier is used.
        """
        initial = as_sparsifier(KeepAll() if initial_sparsifier is None else initial_sparsifier)
        format = Masked() if out_format is None else as_format(out_format)
        anew = _chooses(inline_sparsifier) or _chooses(external_sparsifier)
        last = external_sparsifier if anew else initial
        rule = None
        if anew or every is not None:
            rule = Rule(Output.of((inline_sparsifier, tmp_format, last, format)), 1 if every is None else every)
            rule.check()

        def step(model: nn.Module, target: str) -> Change:
            weight = all_weights(model)[target]
            chosen = sparsify(weight.dense(), initial, format)

            def change() -> None:
                weight.become(chosen, format=format)
                if rule is not None and weight.held is not None:
                    weight.held.rule = replace(rule)

            return change

        self._add("weight", name, self._parameters(), "parameter", step)

    def set_weight_grad(
        self,
        name: str,
        inline_sparsifier: Any = None,
        tmp_format: Format | None = None,
        external_sparsifier: Any = None,
        out_format: Format | None = None,
    ) -> None:
        """Set the format of the gradients of weights; by default the gradient of a sparse weight has its pattern."""
        spec = Output.of((inline_sparsifier, tmp_format, external_sparsifier, out_format))

        def step(model: nn.Module, target: str) -> Change:
            return lambda: all_weights(model)[target].sparsify_gradient(spec)

        self._add("weight_grad", name, self._parameters(), "parameter", step)

    def set_interm(
        self,
        name: str,
        inline_sparsifier: Any = None,
        tmp_format: Format | None = None,
        external_sparsifier: Any = None,
        out_format: Format | None = None,
    ) -> None:
        """Make activations sparse: the output of a module, or of one operator inside it, as ``"module:add"``.

        ``":add"`` is an operator of the model itself.

        :meth:`intermediates` lists the names of a model.
        """
        spec = Output.of((inline_sparsifier, tmp_format, external_sparsifier, out_format))
        self._add_interm("interm", name, spec, gradient=False)

    def set_interm_grad(
        self,
        name: str,
        inline_sparsifier: Any = None,
        tmp_format: Format | None = None,
        external_sparsifier: Any = None,
        out_format: Format | None = None,
    ) -> None:
        """Make the gradients of activations sparse; names as in :meth:`set_interm`."""
        spec = Output.of((inline_sparsifier, tmp_format, external_sparsifier, out_format))
        self._add_interm("interm_grad", name, spec, gradient=True)

    def intermediates(self, *inputs: Any, **kwargs: Any) -> list[str]:
        """Run the model once and list the names of its activations: modules, and operators inside them.

        Examples
        --------
        >>> import torch, gossamer as gs
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> gs.SparsityBuilder(model).intermediates(torch.ones(1, 2))
        ['0', '0:linear', '1', '1:relu']
        """
        return record_names(self._model, inputs, kwargs)

    def get_sparse_model(self) -> nn.Module:
        """Return the sparse model: a copy, or the model itself with ``inplace=True``.

        All positions are selected before the first weight is changed, so an error doesn't leave the model half sparse.
        """
        model = self._model if self._inplace else copy.deepcopy(self._model)
        kinds = ("weight", "weight_grad", "interm", "interm_grad")
        changes = [step(model) for kind in kinds for (known, _), step in self._steps.items() if known == kind]
        for change in changes:
            change()
        made_sparse(model)
        if self._optimizer is not None:
            follow_all(self._optimizer)
        return model

    # -- collecting the settings

    def _parameters(self) -> list[str]:
        return list(all_weights(self._model))

    def _add(self, kind: str, name: str, known: list[str], what: str, step: Callable[[nn.Module, str], Change]) -> None:
        for target in matching(name, known, what):
            self._steps[kind, target] = lambda model, target=target: step(model, target)  # type: ignore[misc]

    def _add_interm(self, kind: str, name: str, spec: Output, gradient: bool) -> None:
        path, _, operator = name.partition(":")

        def step(model: nn.Module, target: str) -> Change:
            module = model.get_submodule(target)
            if operator:
                return lambda: OperatorFormats.of(module).add(operator, spec, gradient)
            return lambda: module.register_forward_hook(FormatOutput(spec, gradient))

        modules = [n for n, _ in self._model.named_modules() if n]
        targets = [""] if operator and not path else matching(path, modules, "module")
        for target in targets:
            self._steps[kind, f"{target}:{operator}"] = lambda model, target=target: step(model, target)  # type: ignore[misc]


def _chooses(sparsifier: Any) -> bool:
    """Does a sparsifier choose at all? (STen writes keep-all where we write None.)"""
    return sparsifier is not None and not isinstance(as_sparsifier(sparsifier).pattern, KeepAll)
