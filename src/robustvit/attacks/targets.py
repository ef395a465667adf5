"""Which classes to aim at first: those with the nearest decision boundary in a linear approximation."""

import torch
from torch import Tensor

from robustvit.attacks.base import Classifier
from robustvit.threats import LpBall


def nearest_boundaries(model: Classifier, x: Tensor, y: Tensor, threat: LpBall, candidates: int = 9) -> Tensor:
    """(B, n) the classes in MALT's order (Melamed et al. 2024), of the `candidates` with the largest logits but y.

    By the logit gap divided by the norm of its gradient: the distance to the boundary if the model were linear, hence
    the norm that belongs to the threat's. One forward pass and a backward pass for each candidate.
    """
    point = x.detach().requires_grad_()
    with torch.enable_grad():
        logits = model(point)
        leads = logits - logits.gather(1, y[:, None])  # (B, K)
        others = leads.detach().scatter(1, y[:, None], -torch.inf)
        chosen = others.topk(min(candidates, leads.shape[1] - 1), dim=1).indices  # (B, n)
        distances = []
        for k in chosen.unbind(1):
            lead = leads.gather(1, k[:, None]).squeeze(1)
            (gradient,) = torch.autograd.grad(lead.sum(), point, retain_graph=True)
            steepness = threat.slope(gradient).clamp_min(torch.finfo(x.dtype).tiny)
            distances.append(-lead.detach() / steepness)
    return chosen.gather(1, torch.stack(distances, 1).argsort(dim=1, stable=True))
