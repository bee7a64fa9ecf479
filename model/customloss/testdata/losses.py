"""Losses of the kinds people write, each per datum: (logprobs, *inputs) -> (loss, metrics)."""

import math
import torch
import torch.nn.functional as F


def clipped_surrogate(logprobs, q, adv):
    ratio = torch.exp(logprobs - q)
    clipped = torch.clamp(ratio, 1 - 0.2, 1 + 0.2)
    loss = -torch.minimum(ratio * adv, clipped * adv).sum()
    hit = (ratio != clipped).float().mean()
    return loss, {"custom/clip_fraction:mean": hit, "custom/ratio:mean": ratio.mean()}


def clip_higher(logprobs, q, adv, mask):
    ratio = (logprobs - q).exp()
    surrogate = torch.min(ratio * adv, ratio.clamp(max=1.28).clamp(min=0.8) * adv)
    loss = -(surrogate * mask).sum() / mask.sum().clamp(min=1)
    return loss, {"custom/entropy:mean": -(logprobs * mask).sum() / mask.sum()}


def kl_regularised(logprobs, q, adv):
    log_ratio = q - logprobs
    k3 = torch.exp(log_ratio) - log_ratio - 1
    loss = (-(logprobs * adv) + 0.1 * k3).sum()
    return loss, {"custom/kl:sum": k3.sum(), "custom/kl:mean": k3.mean()}


def entropy_bonus(logprobs, w2):
    p = F.softmax(logprobs, dim=-1)
    entropy = -(p * F.log_softmax(logprobs, dim=-1)).sum(-1)
    ce = -(w2 * logprobs).sum()
    return ce - 0.01 * entropy.sum(), {"custom/entropy:mean": entropy.mean()}


def distillation(logprobs, w2, mask):
    target = w2 / w2.sum(dim=1, keepdim=True)
    per_token = (target * (target.log() - logprobs)).sum(dim=1)
    loss = (per_token * mask).sum() / torch.clamp(mask.sum(), min=1.0)
    return loss, {"custom/kl:mean": loss.detach()}


def huber_logprob(logprobs, q):
    loss = F.huber_loss(logprobs, q, delta=0.5, reduction="sum")
    return loss, {"custom/abs:mean": (logprobs - q).abs().mean()}


def huber_by_hand(logprobs, q, mask):
    d = torch.abs(logprobs - q)
    each = torch.where(d < 0.25, 0.5 * d**2, 0.25 * (d - 0.125))
    return (each * mask).sum(), {"custom/in:sum": (d < 0.25).sum()}


def length_normalised(logprobs, mask):
    n = mask.sum()
    return -(logprobs * mask).sum() / n, {"custom/len:mean": n, "custom/ppl:mean": torch.exp(-(logprobs * mask).sum() / n)}


def token_masked(logprobs, mask, adv):
    keep = mask > 0
    kept = logprobs[keep]
    return -(kept * adv[keep]).mean(), {"custom/tokens:sum": keep.sum()}


def truncated_is(logprobs, q, adv):
    rho = torch.exp(logprobs - q).clamp(max=2.0).detach()
    return -(rho * adv * logprobs).sum(), {"custom/truncated:mean": (rho >= 2.0).float().mean(), "custom/ess:mean": rho.sum() ** 2 / (rho**2).sum()}


def unlikelihood(logprobs, mask):
    p = logprobs.exp()
    bad = torch.log1p(-p.clamp(max=1 - 1e-6))
    loss = -(mask * logprobs + (1 - mask) * bad).sum()
    return loss, {"custom/p_bad:mean": ((1 - mask) * p).sum() / (1 - mask).sum()}


def label_smoothed(logprobs, t2):
    eps = 0.1
    nll = -logprobs.gather(1, t2[:, :1]).squeeze(1)
    smooth = -logprobs.mean(dim=-1)
    return ((1 - eps) * nll + eps * smooth).sum(), {"custom/nll:mean": nll.mean()}


def grpo_scale(logprobs, q, s):
    ratio = torch.exp(logprobs - q)
    loss = -torch.minimum(ratio * s, ratio.clamp(0.8, 1.2) * s).mean()
    return loss, {"custom/scale:mean": s}


def dr_grpo(logprobs, q, adv, n):
    advantage = adv - adv.mean()
    ratio = torch.exp(logprobs - q)
    per_token = -torch.min(ratio * advantage, torch.clamp(ratio, 0.8, 1.2) * advantage)
    return per_token.sum() / n, {"custom/n:sum": n}


def dpo_like(logprobs, q, s):
    margin = 0.1 * ((logprobs - q).sum() - s)
    return -F.logsigmoid(margin), {"custom/acc:mean": (margin > 0).float(), "custom/margin:mean": margin}


def ipo_like(logprobs, q, s):
    h = (logprobs - q).mean() - s
    return (h - 1 / (2 * 0.1)) ** 2, {"custom/h:mean": h}


def kto_like(logprobs, q, s):
    reward = 0.1 * (logprobs - q).sum()
    return 1 - torch.sigmoid(s * (reward - 0.05)), {"custom/reward:mean": reward.detach()}


def simpo_like(logprobs, mask, s):
    average = (logprobs * mask).sum(-1) / mask.sum(-1)
    return -F.logsigmoid(2.0 * average - s), {"custom/avg:mean": average}


def orpo_like(logprobs, mask):
    mean = (logprobs * mask).sum() / mask.sum()
    odds = mean - torch.log1p(-torch.exp(mean))
    return -mean - 0.1 * F.logsigmoid(odds), {"custom/odds:mean": odds}


def cispo(logprobs, q, adv, mask):
    ratio = torch.exp(logprobs - q)
    weight = torch.clamp(ratio, min=0.0, max=1.5).detach()
    loss = -(weight * adv * logprobs * mask).sum()
    return loss, {"custom/w:mean": weight.mean()}


def gspo(logprobs, q, adv, mask):
    n = mask.sum().clamp(min=1)
    s = torch.exp(((logprobs - q) * mask).sum() / n)
    sequence = s.expand(logprobs.shape[0])
    loss = -(torch.minimum(sequence * adv, sequence.clamp(1 - 3e-4, 1 + 4e-4) * adv) * mask).sum() / n
    return loss, {"custom/s:mean": s}


def gspo_token(logprobs, q, adv):
    s = (logprobs - q).mean()
    token = torch.exp(s.detach() + logprobs - logprobs.detach())
    return -(token * adv).mean(), {"custom/s:mean": torch.exp(s)}


def focal(logprobs, w):
    p = torch.exp(logprobs)
    return -(((1 - p) ** 2.0) * logprobs * w.abs()).sum(), {"custom/p:mean": p.mean()}


def sft_weighted(logprobs, w):
    loss = -(logprobs * w).sum()
    return loss, {"custom/nll:sum": loss}


def normalised_advantage(logprobs, adv):
    a = (adv - adv.mean()) / (adv.std(unbiased=False) + 1e-6)
    return -(logprobs * a).mean(), {"custom/std:mean": adv.std()}


def discounted_returns(logprobs, adv):
    discount = torch.pow(0.9, torch.arange(adv.shape[0], dtype=torch.float32))
    returns = torch.flip(torch.cumsum(torch.flip(adv * discount, [0]), 0), [0]) / discount
    return -(logprobs * returns).sum(), {"custom/return:mean": returns[0]}


def pairwise_ranking(logprobs, adv):
    better = (adv[:, None] > adv[None, :]).float()
    gap = logprobs.unsqueeze(1) - logprobs.unsqueeze(0)
    return -(F.logsigmoid(gap) * better).sum() / better.sum(), {"custom/pairs:sum": better.sum()}


def listwise(logprobs, adv):
    return F.kl_div(F.log_softmax(logprobs, dim=0), F.softmax(adv, dim=0), reduction="sum"), {}


def margin_contrastive(logprobs, mask):
    good = (logprobs * mask).sum() / mask.sum()
    bad = (logprobs * (1 - mask)).sum() / (1 - mask).sum()
    return torch.relu(0.5 - (good - bad)), {"custom/gap:mean": good - bad}


def info_nce_2d(logprobs):
    return -torch.log_softmax(logprobs / 0.07, dim=-1)[:, 0].mean(), {"custom/top1:mean": (logprobs.argmax(-1) == 0).float().mean()}


def top_entropy_tokens(logprobs, adv):
    low = logprobs.topk(3, largest=False)
    return -(low.values * adv[low.indices]).sum(), {"custom/cut:mean": low.values.max()}


def quantile_clipped(logprobs, adv):
    cap = torch.quantile(adv, 0.8)
    return -(logprobs * torch.minimum(adv, cap)).sum(), {"custom/cap:mean": cap}


def z_score_2d(logprobs):
    z = (logprobs - logprobs.mean(dim=0, keepdim=True)) / (logprobs.std(dim=0, keepdim=True) + 1e-5)
    return (z**2 * torch.sigmoid(logprobs)).mean(), {"custom/z:sum": z.abs().max()}


def prompt_masked_by_length(logprobs, n):
    answer = logprobs[n:]
    return -answer.mean(), {"custom/answer:sum": answer.numel(), "custom/all:sum": logprobs.shape[0]}


def ragged_mask(logprobs, n):
    keep = torch.arange(logprobs.shape[0]) >= n
    return -torch.where(keep, logprobs, torch.zeros_like(logprobs)).sum() / keep.sum(), {"custom/keep:sum": keep.sum()}


def repetition_penalty(logprobs, t):
    repeated = (t.unsqueeze(0) == t.unsqueeze(1)).float().tril(diagonal=-1).sum(1) > 0
    return -(logprobs * torch.where(repeated, 0.5, 1.0)).sum(), {"custom/repeated:sum": repeated.sum()}


def smooth_difference(logprobs, s):
    return -logprobs.mean() + s * torch.diff(logprobs).pow(2).sum(), {"custom/rough:mean": logprobs.diff().abs().mean()}


def renyi(logprobs, q):
    alpha = 0.5
    return torch.logsumexp(alpha * logprobs + (1 - alpha) * q, dim=0) / (alpha - 1), {}


def reverse_kl_2d(logprobs, w2, mask):
    teacher = torch.log(w2.clamp_min(1e-8))
    student = logprobs - logprobs.logsumexp(-1, keepdim=True)
    kl = (student.exp() * (student - teacher)).sum(-1)
    return torch.sum(kl * mask) / mask.sum(), {"custom/kl:mean": kl.mean(), "custom/max:mean": kl.max()}


def js_divergence_2d(logprobs, w2):
    p, q = torch.softmax(logprobs, -1), torch.softmax(w2, -1)
    m = 0.5 * (p + q)
    js = 0.5 * (p * (p / m).log() + q * (q / m).log()).sum(-1)
    return js.mean(), {"custom/js:sum": js.sum()}


def tempered(logprobs, adv):
    scale = 1.0 / math.sqrt(logprobs.shape[0])
    return -(torch.tanh(adv / 0.5) * logprobs).sum() * scale, {"custom/scale:mean": scale * adv.norm()}


def asymmetric(logprobs, q, adv):
    ratio = torch.exp(logprobs - q)
    positive = torch.minimum(ratio, torch.full_like(ratio, 1.2)) * adv
    negative = torch.maximum(torch.minimum(ratio, torch.full_like(ratio, 3.0)), torch.full_like(ratio, 0.8)) * adv
    return -torch.where(adv >= 0, positive, negative).sum(), {"custom/dual:mean": ((adv < 0) & (ratio > 3)).float().mean()}


def geometric_ratio(logprobs, q, s, mask):
    log_ratio = torch.cumsum((logprobs - q) * mask, dim=-1) / torch.cumsum(mask, dim=-1).clamp(min=1)
    ratio = log_ratio.exp()
    loss = -torch.sum(torch.min(ratio * s, ratio.clamp(0.9, 1.1) * s) * mask)
    return loss, {"custom/last:mean": ratio[-1]}


def in_place(logprobs, adv, mask):
    loss = -(logprobs * adv)
    loss *= mask
    loss += 0.01
    total = loss.sum()
    return total, {"custom/l:sum": total.detach()}


LOSSES = [v for k, v in list(globals().items()) if callable(v) and getattr(v, "__module__", "") == __name__]
