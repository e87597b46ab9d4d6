"""Our LSTM cells as torch's own modules: what several captioners are compared with."""

import torch
from torch import nn

from meshcap.models.recurrent import Cell


def torchs(cell: Cell) -> nn.LSTM:
    """torch's LSTM with the weights of one of ours; it orders its gates i, f, g, o."""
    lstm = nn.LSTM(cell.input.in_features, cell.d_hidden, batch_first=True)
    order = torch.arange(4 * cell.d_hidden).view(4, -1)[[0, 1, 3, 2]].flatten()
    if cell.recurrent.in_features > cell.d_hidden:  # a cell that recalls more than its state has no such module
        raise ValueError("use torchs_cell")
    with torch.no_grad():
        lstm.weight_ih_l0.copy_(cell.input.weight[order])
        lstm.weight_hh_l0.copy_(cell.recurrent.weight[order])
        lstm.bias_ih_l0.copy_(cell.input.bias[order])
        lstm.bias_hh_l0.zero_()
    return lstm


def torchs_cell(cell: Cell) -> nn.LSTMCell:
    """torch's cell, which hears the word and all that is recalled but the state in one vector."""
    width, own = cell.input.in_features, cell.d_hidden
    theirs = nn.LSTMCell(width + cell.recurrent.in_features - own, own)
    order = torch.arange(4 * own).view(4, -1)[[0, 1, 3, 2]].flatten()
    with torch.no_grad():
        theirs.weight_ih.copy_(torch.cat((cell.input.weight, cell.recurrent.weight[:, own:]), 1)[order])
        theirs.weight_hh.copy_(cell.recurrent.weight[order, :own])
        theirs.bias_ih.copy_(cell.input.bias[order])
        theirs.bias_hh.zero_()
    return theirs
