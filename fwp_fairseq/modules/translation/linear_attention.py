"""Linear attention in the place of fairseq's `MultiheadAttention`: encoder, decoder and cross-attention (section 6.2).

The projections, with their biases and their initialisation, are those of fairseq's softmax attention, so that nothing
but the attention differs. Attention weights are never formed: there are none to drop out, and none to return.
"""

import torch
from fairseq.modules import MultiheadAttention
from torch import nn

from fwp_fairseq.modules.fast_weight_attention import check_heads
from fwp_fairseq.modules.feature_map import FeatureMap
from fwp_fairseq.modules.update_rules import find_rule
from fwp_fairseq.ops import read_normalized, read_whole_sequence, sum_normalize, sum_over_sequence


class LinearAttention(MultiheadAttention):
    """What the three have in common: projections, feature map, and a state that beam search can reorder.

    Sizes are fairseq's (length, batch, embed_dim) outside and (batch, heads, length, d_head) inside. FAVOR+ is scaled
    as softmax is, its keys and queries times d_head^-1/4 (Choromanski et al. 2021); the other feature maps are not.

    Args:
        embed_dim: size of inputs and outputs; a multiple of `num_heads`
        feature_map, nu, m: see `FeatureMap`
    """

    normalized = True  # whether z is part of the state

    def __init__(self, embed_dim, num_heads, feature_map="elu", nu=None, m=None):
        d_head = check_heads(embed_dim, num_heads)
        super().__init__(embed_dim, num_heads)
        self.feature_map = FeatureMap(feature_map, d_head, nu, m)

    def split_heads(self, x):
        """(length, batch, embed_dim) -> (batch, heads, length, d_head)."""
        return x.unflatten(2, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3)

    def project_out(self, read):
        """(batch, heads, length, d_head) -> (length, batch, embed_dim), through the output projection."""
        return self.out_proj(read.permute(2, 0, 1, 3).flatten(2))

    def features(self, *tensors):
        """phi of keys and queries, (batch, heads, length, d_head) -> (batch, heads, length, d_phi)."""
        if self.feature_map.name == "favor":
            tensors = [x * self.head_dim**-0.25 for x in tensors]
        return self.feature_map(*tensors)

    def saved(self, incremental_state):
        """The state (W,) or (W, z) of an earlier step, or None."""
        return tuple(self._get_input_buffer(incremental_state).values()) or None

    def save(self, incremental_state, state):
        self._set_input_buffer(incremental_state, dict(zip(("weights", "sums"), state)))

    def reorder_incremental_state(self, incremental_state, new_order):
        """Called by beam search when hypotheses change places or sentences are finished."""
        state = self.saved(incremental_state)
        if state is not None:
            self.save(incremental_state, [x.index_select(0, new_order) for x in state])
        return incremental_state

    @property
    def state_size(self) -> int:
        """Numbers in the state of one sentence, however long."""
        return self.num_heads * self.feature_map.d_phi * (self.head_dim + self.normalized)


class WholeSequenceAttention(LinearAttention):
    """Every query reads every source position: the encoder's self-attention, and the decoder's to the encoder.

    The sum rule with its reads divided by z . phi(q). In incremental decoding the source is summed at the first step,
    and its sums are all that the later ones read.
    """

    def forward(
        self,
        query,
        key,
        value,
        key_padding_mask=None,
        incremental_state=None,
        need_weights=False,
        static_kv=False,
        attn_mask=None,
        need_head_weights=False,
    ):
        """query (T, B, embed_dim), key and value (S, B, embed_dim), key_padding_mask (B, S) true where the source is
        padding -> (T, B, embed_dim) and None in the place of weights. Where all of a source is padding the read is 0.

        Raises `ValueError` for an `attn_mask`, since the sums hold no single position that could be left out.
        """
        if attn_mask is not None:
            raise ValueError("attn_mask: linear attention over the whole sequence has no pairs to mask; leave it out")
        q = self.split_heads(self.q_proj(query))
        state = self.saved(incremental_state) if static_kv else None
        if state is not None:
            return self.project_out(read_normalized(state, self.features(q))), None
        k, v = self.split_heads(self.k_proj(key)), self.split_heads(self.v_proj(value))
        q, k = self.features(q, k)
        k = without_padding(k, key_padding_mask)
        if not static_kv or incremental_state is None:
            return self.project_out(read_whole_sequence(q, k, v)), None
        state = sum_over_sequence(k, v)
        self.save(incremental_state, state)
        return self.project_out(read_normalized(state, q)), None


class CausalAttention(LinearAttention):
    """The decoder's self-attention: fast weights written and read at every position, by the sum or the delta rule.

    Args beyond those of `LinearAttention`: update_rule, sum_normalization, attention_normalization and backend as for
    `FastWeightAttention`. The delta rule's beta has a bias too, as all projections here have.
    """

    def __init__(
        self,
        embed_dim,
        num_heads,
        update_rule="sum",
        sum_normalization=False,
        attention_normalization="output",
        backend="auto",
        **feature_map,
    ):
        self.rule = find_rule(update_rule, attention_normalization)
        super().__init__(embed_dim, num_heads, **feature_map)
        self.sum_normalization = sum_normalization
        self.attention_normalization = attention_normalization
        self.normalized = attention_normalization != "none"
        self.backend = backend
        self.beta_proj = None
        if self.rule.uses_beta:
            self.beta_proj = nn.Linear(embed_dim, num_heads)
            nn.init.xavier_uniform_(self.beta_proj.weight)
            nn.init.zeros_(self.beta_proj.bias)

    def forward(
        self,
        query,
        key,
        value,
        key_padding_mask=None,
        incremental_state=None,
        need_weights=False,
        static_kv=False,
        attn_mask=None,
        need_head_weights=False,
    ):
        """query (T, B, embed_dim), key_padding_mask (B, T) true at padding -> (T, B, embed_dim) and None.

        key and value are the query, as fairseq passes them; `attn_mask` is the causal one, which the rule implies.
        With an `incremental_state` the T positions follow those of the calls before.
        """
        q, k, v = (self.split_heads(project(query)) for project in (self.q_proj, self.k_proj, self.v_proj))
        q, k = self.features(q, k)
        if self.sum_normalization:
            q, k = sum_normalize(q), sum_normalize(k)
        beta = None
        if self.beta_proj is not None:
            beta = torch.sigmoid(self.beta_proj(query)).permute(1, 2, 0)
        before = self.saved(incremental_state)
        if before is not None and not self.normalized:
            (before,) = before
        k = without_padding(k, key_padding_mask)
        read, after = self.rule.apply(q, k, v, beta, before, self.attention_normalization, self.backend)
        if incremental_state is not None:
            self.save(incremental_state, after if self.normalized else (after,))
        return self.project_out(read), None


def without_padding(keys, mask):
    """Keys after the feature map, zero where `mask` (B, L) is true: no rule writes anything under such a key."""
    return keys if mask is None else keys.masked_fill(mask.bool()[:, None, :, None], 0)
