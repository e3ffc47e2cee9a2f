"""A small character-level transformer and its optimizer, in plain PyTorch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from text import CHARACTERS
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from settings import Settings
    from text import Windows

_NEARBY = 4
_WARM_UP_STEPS = 40


class Block(nn.Module):
    """Attention and a two-layer network, each added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.network = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mix along the text, then each character for itself."""
        parts = self.query_key_value(self.attention_norm(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).flatten(2))
        return x + self.network(x)


class CharacterModel(nn.Module):
    """Says for each character of a window which one follows."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        width = settings.width
        self.characters = nn.Embedding(CHARACTERS, width)
        self.places = nn.Parameter(torch.zeros(settings.context, width))
        # Each place also sees the characters just before it, so that attention need not learn first to look there.
        self.nearby = nn.Conv1d(width, width, _NEARBY, groups=width)
        self.blocks = nn.Sequential(*(Block(width, settings.heads) for _ in range(settings.layers)))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, CHARACTERS, bias=False)

    def forward(self, characters: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """The mean loss over all places, in nats a character."""
        x = self.characters(characters)
        nearby = self.nearby(functional.pad(x.transpose(1, 2), (_NEARBY - 1, 0))).transpose(1, 2)
        x = self.norm(self.blocks(x + nearby + self.places))
        return functional.cross_entropy(self.out(x).flatten(0, 1), wanted.flatten())


def make(settings: Settings) -> tuple[CharacterModel, torch.optim.AdamW]:
    """The model and the optimizer that every replica begins with: the same for the same seed."""
    torch.manual_seed(settings.seed)
    model = CharacterModel(settings)
    return model, torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, fused=True)


def learning_rate(settings: Settings, step: int) -> float:
    """A warm-up, then half a cosine down to nothing at the last step."""
    warmed = min(1.0, (step + 1) / _WARM_UP_STEPS)
    return settings.learning_rate * warmed * 0.5 * (1 + math.cos(math.pi * step / settings.steps))


def held_out_loss(model: CharacterModel, windows: Windows, count: int) -> float:
    """The loss on `count` windows of text that no replica was trained on."""
    with torch.inference_mode():
        return float(model(*windows.read(0, count)))
