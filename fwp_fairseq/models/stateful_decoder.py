"""What the language models' decoders share: a state handed in and out, and fairseq's incremental decoding on top of it.

Fairseq's generator passes an `incremental_state`; what is kept in it here is the state of the layers, which for fast
weights has the same size however long the text is.
"""

from fairseq.models import FairseqIncrementalDecoder

from fwp_fairseq.modules.state import check_layers, reorder_state


class StatefulDecoder(FairseqIncrementalDecoder):
    """A decoder with `layers` and `read(tokens, state)`, which returns hidden states and the state after them.

    `goes_on` says whether a text may be handed over in pieces: not where positions are counted from its end.
    """

    goes_on = True

    def forward(self, prev_output_tokens, encoder_out=None, incremental_state=None, state=None, src_lengths=None):
        """Symbols (B, L) -> hidden states (B, L, d_model), which `adaptive_softmax` turns into probabilities, and
        {"state": the state after the last symbol, "attn": None}, the second for fairseq's generator.

        state: what an earlier call returned, to go on from there, or None for a fresh start. Padding may only follow
        a text, and then the state is not to be used. With fairseq's `incremental_state` only the symbols that are new
        since the last call are read. `encoder_out` and `src_lengths` are what fairseq hands to every decoder.

        Raises `ValueError` for the state of another model or batch.
        """
        if incremental_state is not None and self.goes_on:
            return self.read_on(prev_output_tokens, incremental_state)
        if state is not None:
            check_layers(state, len(self.layers))
        hidden, state = self.read(prev_output_tokens, state)
        return hidden, {"state": state, "attn": None}

    def read_on(self, tokens, incremental_state):
        kept = self.get_incremental_state(incremental_state, "text") or {"state": None, "read": 0}
        hidden, state = self.read(tokens[:, kept["read"] :], kept["state"])
        self.set_incremental_state(incremental_state, "text", {"state": state, "read": tokens.shape[1]})
        return hidden, {"state": state, "attn": None}

    def reorder_incremental_state(self, incremental_state, new_order):
        """Called by beam search when hypotheses change places."""
        kept = self.get_incremental_state(incremental_state, "text")
        if kept is not None:
            kept = {**kept, "state": reorder_state(kept["state"], new_order)}
            self.set_incremental_state(incremental_state, "text", kept)
