"""Language models as fairseq's generator asks them, with a temperature that is right for an output layer with biases."""

import torch
from fairseq.sequence_generator import EnsembleModel


class TemperedEnsemble(EnsembleModel):
    """Divides the logarithms of the probabilities by the temperature, where fairseq divides the hidden state.

    `SequenceGenerator(TemperedEnsemble(models), dictionary, temperature=0.8)`
    """

    def forward_decoder(self, tokens, encoder_outs, incremental_states, temperature=1.0):
        log_probs, attention = super().forward_decoder(tokens, encoder_outs, incremental_states)
        return torch.log_softmax(log_probs / temperature, dim=-1), attention
