"""One expression per operation and argument form, over x (logprobs, [7]) or two
(logprobs, [7,3]) and the tensors of make_goldens.datum."""

UNARY = """exp exp2 expm1 sin cos tan tanh sigmoid erf erfc square neg abs sign floor ceil trunc frac sinh cosh asinh atan
sgn negative absolute positive isnan isinf isfinite relu sqrt log log1p log2 log10 rsqrt reciprocal acosh lgamma digamma deg2rad logical_not""".split()

OPERATIONS = [f"torch.{f}({'p + x * 0 + 1.5' if f in ('sqrt', 'log', 'log1p', 'log2', 'log10', 'rsqrt', 'acosh', 'lgamma') else 'x'})" for f in UNARY if f != "digamma"]
OPERATIONS += [f"(x * 0.3).{f}()" for f in "exp tanh sigmoid neg abs sign floor square asin acos atanh expm1 log1p relu".split()]
OPERATIONS += """
F.logsigmoid(x)
F.softplus(x)
F.softplus(x * 20, beta=2, threshold=5)
F.relu(x + 1)
F.leaky_relu(x + 1, 0.2)
F.elu(x + 1, alpha=0.5)
F.celu(x + 1, alpha=0.5)
F.selu(x + 1)
F.gelu(x)
F.gelu(x, approximate='tanh')
F.silu(x)
F.mish(x)
F.softsign(x)
F.tanhshrink(x)
F.hardtanh(x, -1, 0.5)
F.hardsigmoid(x * 3)
F.relu6(x + 1)
F.threshold(x, -1, 0.25)
F.tanh(x)
F.sigmoid(x)
torch.special.expit(x)
torch.special.xlogy(w, p + x * 0)
torch.special.entr(p * (x * x))
torch.special.log1p(p + x * 0.1)
torch.special.logit(p + x * 0.01)
torch.logit(p + x * 0.4, eps=0.2)
x + w
x + 2
2 + x
x - w
1 - x
x * w
x * t
x / w
1 / x
x / t.clamp(min=1)
w // 0.4
t // 2
t % 3
-t // 2
x % 0.7
w % -0.4
torch.fmod(w, 0.4)
torch.remainder(x, w)
x ** 2
x ** 3
2 ** x
p ** x
(x * x) ** 0.5
x ** 0
x ** -1
torch.pow(p, x)
t ** 2
torch.pow(2, x)
torch.float_power(p, x)
-x
+x
abs(x)
x @ w
w @ two
two @ two.T
two.t() @ two
torch.matmul(two[None], two.T)
torch.add(x, w, alpha=0.5)
torch.sub(x, w, alpha=2)
torch.rsub(x, 1)
torch.mul(x, 3)
torch.multiply(x, w)
torch.div(x, w, rounding_mode='floor') + x
torch.div(x, w, rounding_mode='trunc') + x
torch.true_divide(x, 2)
torch.floor_divide(w, 0.3)
torch.subtract(x, w)
x.add(w)
x.sub(w).mul(2).div(3)
(x > -1) * x
(x < w) & (w > 0)
(x < w) | (w > 0)
(x < w) ^ (w > 0)
~(x < w)
True & (x > -1)
x == x
x != w
x >= -1
x <= w
torch.eq(t, 1)
torch.gt(x, w)
x.lt(-1)
x.ge(w)
torch.logical_and(x > -1, w > 0)
torch.logical_or(x > -1, w > 0)
torch.logical_xor(x > -1, w > 0)
torch.bitwise_and(t, 3)
t | 1
t ^ 5
~t
t << 1
t >> 1
torch.isclose(x, x + 1e-9)
torch.maximum(x, w)
torch.minimum(x, w)
torch.maximum(x, x)
torch.max(x, w)
torch.min(x, w)
torch.fmax(x, w)
torch.fmin(x, w)
torch.atan2(x, w)
torch.hypot(x, w)
torch.logaddexp(x, w)
torch.logaddexp2(x, w)
torch.xlogy(w, p)
torch.copysign(x, w)
torch.heaviside(w, s)
torch.lerp(x, w, 0.3)
torch.lerp(x, w, p)
torch.addcmul(x, w, x, value=0.5)
torch.addcdiv(x, w, p, value=0.5)
torch.clamp(x, -1, -0.5)
torch.clamp(x, min=-1)
x.clamp(max=-0.5)
x.clip(-1, -0.5)
x.clamp_min(-1)
x.clamp_max(-1)
torch.clamp(x, w, w + 1)
torch.clamp(x, min=w)
torch.clamp(ties + x * 0, 0, 3)
t.clamp(1, 3)
t.clamp(0.5)
torch.where(w > 0, x, 0.0)
torch.where(w > 0, x, w)
torch.where(w > 0, 1, x)
torch.where(x > -1, torch.log(x + 1), 0.0)
x.where(w > 0, w)
x.masked_fill(w > 0, 0.0)
x.masked_fill(w > 0, float('-inf')).exp()
torch.masked_fill(x, mask == 0, -1e9)
torch.masked_fill(two, mask[:, None] == 0, 0.5)
torch.nan_to_num(torch.log(w) + x)
torch.nan_to_num(x / 0.0, nan=0.0, posinf=1.0, neginf=-1.0) + x
torch.isnan(torch.log(w))
torch.round(x)
torch.round(x, decimals=1)
x.sum()
two.sum(0)
two.sum(dim=1)
two.sum(-1, keepdim=True)
two.sum((0, 1))
two.sum(axis=0)
torch.sum(two, dim=[0, 1])
torch.sum(two, 1)
(x > -1).sum()
t.sum()
x.sum(dtype=torch.float64)
x.mean()
two.mean(0)
two.mean(dim=1, keepdim=True)
two.mean(-1)
torch.mean(two, dim=(0, 1))
torch.mean(x)
x.prod()
two.prod(1)
torch.prod(two, dim=0, keepdim=True)
(x * mask).prod()
t.prod()
x.var()
x.var(unbiased=False)
two.var(0)
two.var(1, unbiased=False)
two.var(dim=1, correction=0, keepdim=True)
x.std()
x.std(unbiased=False)
x.std(correction=0)
two.std(0)
two.std(dim=-1, keepdim=True)
torch.std(x)
torch.std(two, 1, False)
(x * 0).std()
torch.var_mean(two, 0)[0], torch.var_mean(two, 0)[1]
torch.std_mean(x)[0]
torch.logsumexp(x, 0)
torch.logsumexp(two, dim=-1)
two.logsumexp(1, keepdim=True)
torch.logsumexp(two, (0, 1))
torch.softmax(x, 0)
torch.softmax(two, dim=-1)
F.softmax(two, dim=1)
F.softmax(x, dim=-1, dtype=torch.float64)
two.softmax(0)
torch.log_softmax(x, dim=0)
F.log_softmax(two, -1)
two.log_softmax(-1)
F.softmin(x, dim=0)
x.cumsum(0)
torch.cumsum(two, dim=1)
(x > -1).cumsum(0)
x.cumprod(0)
torch.cumprod(x * mask, 0)
torch.logcumsumexp(x, 0)
torch.cummax(x, 0)[0]
torch.cummin(x, dim=0).values
torch.cummax(ties + x * 0, 0).indices
x.max()
x.min()
(ties + x * 0.0).max()
(ties + x * 0.0).amax()
two.max(1)[0]
two.max(dim=1).values
two.max(1).indices
two.max(-1, keepdim=True)[0]
torch.max(two, 0)[0]
torch.min(two, dim=1).values
torch.min(x, 0).indices
(ties + x * 0.0).max(0)[0]
two.amax(1)
two.amin(dim=(0, 1))
torch.amax(two, 0, keepdim=True)
x.argmax()
two.argmax(1)
two.argmin(dim=0, keepdim=True)
torch.argmax(ties + x * 0)
torch.aminmax(x)[0], torch.aminmax(x).max
t.max()
t.min(0)[0]
(x > -1).any()
(x > -1).all()
(two > -1).any(1)
torch.all(two < 0, dim=0)
torch.count_nonzero(mask)
torch.count_nonzero(two > -1, dim=0)
torch.nansum(torch.where(w > 0, x, torch.log(w - 10)))
torch.nanmean(torch.where(w > 0, x, torch.log(w - 10)))
x.norm()
x.norm(1)
x.norm(p=3)
two.norm(dim=1)
two.norm(2, dim=-1, keepdim=True)
torch.norm(x)
torch.norm(x, p=float('inf'))
torch.linalg.norm(x)
torch.linalg.vector_norm(two, dim=1)
(x * 0).norm()
x.median()
torch.median(two, dim=1).values
two.median(0)[0]
(ties + x * 0).median()
x.sort().values
x.sort(descending=True)[0]
torch.sort(two, dim=0)[0]
torch.argsort(x)
x.topk(3).values
torch.topk(two, 2, dim=1)[0]
torch.topk(x, 2, largest=False).values
torch.kthvalue(x, 3).values
torch.quantile(x, 0.3)
torch.quantile(two, 0.5, dim=1)
x.dot(w)
torch.dot(x, w)
two.mv(w2[0])
torch.mm(two.T, two)
torch.bmm(two[None], two.T[None])
torch.outer(x, w)
torch.einsum('i,i->', x, w)
torch.einsum('ij,ij->i', two, w2)
torch.einsum('ij,kj->ik', two, w2)
torch.einsum('ij->j', two)
torch.einsum('i,j', x, w)
F.linear(two, w2)
F.cosine_similarity(x, w, dim=0)
torch.cosine_similarity(two, w2)
F.pairwise_distance(two, w2)
F.normalize(x, dim=0)
F.normalize(two)
x.gather(0, t)
two.gather(1, t2)
two.gather(-1, t2[:, :1]).squeeze(-1)
torch.gather(two, 1, t2)
x.index_select(0, t)
torch.index_select(two, 1, t2[0])
torch.take_along_dim(two, t2, 1)
torch.take_along_dim(two, t2[:, :1], dim=1)
torch.take(two, t)
x.masked_select(w > 0)
x.nonzero()
torch.nonzero(mask).squeeze(-1)
x[torch.where(w > 0)[0]]
torch.scatter(x, 0, t, w)
x.scatter(0, t, 2.0)
torch.scatter_add(x, 0, t, x)
w.scatter_add(0, t, x)
x.index_add(0, t, w, alpha=2)
x.index_fill(0, t, 1.0)
F.one_hot(t, 7) * x
F.one_hot(t).sum(1) * x
torch.stack([x, w])
torch.stack((x, w), dim=1)
torch.stack([x.sum(), w.mean(), s])
torch.cat([x, w])
torch.cat((two, w2), dim=-1)
torch.cat([x, t])
torch.hstack([x, w])
torch.vstack((x, w))
torch.concat([x, w])
x.unsqueeze(0)
x.unsqueeze(-1) * w
torch.unsqueeze(x, 1)
two.unsqueeze(1).squeeze(1)
x.view(-1, 1)
x.view(7)
two.view(3, 7)
two.view((-1,))
two.reshape(-1)
two.reshape(3, -1)
torch.reshape(two, (3, 7))
two.flatten()
torch.flatten(two, 0, 1)
two.ravel()
x.view_as(w)
two.unflatten(0, (7, 1))
x.expand(3, 7)
x.unsqueeze(1).expand(-1, 3)
x.unsqueeze(-1).expand_as(x.unsqueeze(-1).repeat(1, 3))
torch.broadcast_to(x, (2, 7))
torch.broadcast_tensors(x, s)[1] * x
x.repeat(2)
x.repeat(2, 3)
torch.tile(x, (2,))
two.tile(2, 1)
x.repeat_interleave(2)
two.repeat_interleave(2, dim=0)
two.transpose(0, 1)
torch.transpose(two, 0, 1)
two.permute(1, 0)
torch.permute(two, (1, 0))
two.T
two.mT
two.t()
two.movedim(0, 1)
two.swapaxes(0, 1)
x.flip(0)
two.flip([0, 1])
torch.flip(x, (0,))
x.roll(1)
x.roll(-2, 0)
torch.roll(two, (1, 2), (0, 1))
torch.diff(x)
x.diff(n=2)
torch.diff(x, prepend=s.reshape(1))
two.diff(dim=0)
x.split(3)[1]
torch.split(x, [2, 5])[1]
torch.split(two, 2, dim=1)[0]
x.chunk(3)[2]
torch.chunk(two, 2, dim=1)[0]
x.unbind()[2]
two.unbind(1)[1]
x.narrow(0, 1, 3)
torch.narrow(two, 1, 0, 2)
x.select(0, 2)
torch.tril(two)
torch.triu(two, diagonal=1)
two.diagonal()
torch.diag(x)
x.unfold(0, 3, 2)
F.pad(x, (1, 2))
F.pad(two, (1, 0, 0, 2), value=2.0)
F.pad(x, (-1, 0))
x[0]
x[-1]
x[1:]
x[:-1]
x[::2]
x[1:6:2]
x[None]
x[:, None] * w
x[..., None]
x[...]
x[2:2].sum() + x.sum()
two[0]
two[:, 0]
two[..., -1]
two[1:, :2]
two[0, 1]
two[:, None, 1]
two[None, :, None]
x[w > 0]
x[mask.bool()].sum() / mask.sum()
two[mask.bool()]
two[mask.bool(), 1]
two[two > -1]
x[t]
x[[0, 2]]
two[t]
two[t, 0]
two[:, t2[0]]
two[torch.arange(two.shape[0]), t2[:, 0]]
two[torch.arange(two.size(0))[:, None], t2]
two[[0, 1], [2, 0]]
two[None, t, t2[:, 0]]
two[t[:, None], None, t2]
x[:n]
x[n:]
x[n]
x.sum() / x.numel()
x.sum() / x.shape[0]
x.sum() / x.size(0)
two.sum() / two.shape[-1]
two.reshape(two.size(0) * two.shape[1], 1)
two.view(two.shape[1], -1)
x.sum() / (x.shape[0] - 1)
x.new_zeros(x.shape[:-1] + (2,)) + x[0]
x * x.ndim + x.dim()
x * torch.sym_max(x.shape[0], 1)
math.sqrt(x.shape[0]) * x
x / math.log(x.numel() + 1)
x * math.exp(s)
math.pi * x
x * (x.shape[0] // 2) ** 2
x * (x.shape[0] % 4) / (x.shape[0] * 1.5)
torch.zeros_like(x) + x
torch.ones_like(x) * x
torch.full_like(x, 0.5) * x
torch.full_like(t, 3) * x
torch.zeros(x.shape[0]) + x
torch.ones(x.shape) * x
torch.ones((x.shape[0], 2)) * x[:, None]
torch.full((x.shape[0],), 0.25) * x
torch.arange(x.shape[0]) * x
torch.arange(1, x.shape[0] + 1) * x
torch.arange(0, x.shape[0], 2)
torch.arange(x.shape[0], dtype=torch.float32) * x
torch.linspace(0, 1, x.shape[0]) * x
torch.eye(x.shape[0]) * x
x.new_zeros(7) + x
x.new_ones((2, 7)) * x
x.new_full((7,), 2.0) * x
x.new_tensor([1.0, 2.0]) * x[:2]
torch.tril(torch.ones((x.shape[0], x.shape[0]))) @ x
x.detach() * x
x.data * x
x.clone() + x
x.contiguous()
torch.exp(x - x.detach())
x.float()
x.double() * w
x.to(torch.float64)
x.to(dtype=torch.float32)
x.to('cpu')
x.to(w.device)
x.to(w)
t.to(x.dtype) * x
t.float() * x
t.type(torch.float32) * x
t.type_as(x) * x
w.long() * x
w.int() + x
w.bool() * x
mask.to(torch.bool) * x
(w * 100).to(torch.int32) * x
(w * 100).byte() * x
x.to(torch.bfloat16)
x.half()
x.bfloat16() * w.bfloat16()
t.to(torch.int32) + t
t + s
t * 0.5
(t > 1) + t
(t > 1) + 0.5
t / 2
t.double() * x
s * x
F.mse_loss(x, w)
F.mse_loss(x, w, reduction='sum')
F.mse_loss(x, w, reduction='none')
F.l1_loss(x, w)
F.huber_loss(x, w)
F.huber_loss(x, w, reduction='none', delta=0.4)
F.smooth_l1_loss(x, w)
F.smooth_l1_loss(x, w, beta=0.5, reduction='sum')
F.kl_div(x, p)
F.kl_div(x, p, reduction='batchmean')
F.kl_div(x, q, log_target=True, reduction='sum')
F.binary_cross_entropy(torch.exp(x), mask)
F.binary_cross_entropy(torch.exp(x), p, weight=w.abs(), reduction='none')
F.binary_cross_entropy_with_logits(x, mask)
F.binary_cross_entropy_with_logits(x, p, pos_weight=p * 2, reduction='sum')
F.cross_entropy(two, t2[:, 0])
F.cross_entropy(two, t2[:, 0], reduction='none')
F.cross_entropy(two, t2[:, 0], label_smoothing=0.1)
F.cross_entropy(two, t2[:, 0], ignore_index=1)
F.cross_entropy(two, F.softmax(w2, dim=1))
F.cross_entropy(x, n)
F.nll_loss(two, t2[:, 0])
F.soft_margin_loss(x, torch.sign(w))
F.hinge_embedding_loss(x, torch.sign(w))
F.margin_ranking_loss(x, w, torch.sign(adv), margin=0.1)
F.dropout(x, p=0.0)
F.dropout(x, 0.5, training=False)
F.layer_norm(x, (7,))
F.layer_norm(two, (3,), w2[0], w2[1])
F.glu(x[:6])
(x * 2).add_(1)
(x * 2).mul_(w).clamp_(min=-1)
(x * 1).masked_fill_(w > 0, 0.0)
(x * 2).sub_(1).div_(2).neg_()
torch.sqrt(x * 0)
torch.abs(x * 0)
torch.where(w > 0, torch.sqrt(w), x)
torch.relu(x * 0)
(x * 0).sign() + x
torch.exp(x * 100)
torch.log(torch.exp(x) * 0)
torch.minimum(x, x.detach())
torch.clamp(x, x.min().detach(), x.max().detach())
x.mean(0, True) + x
torch.arctan2(x, w)
torch.argwhere(mask)
torch.bitwise_left_shift(t, 2)
torch.bitwise_right_shift(t, t)
torch.bitwise_not(t)
torch.bitwise_not(x > w)
torch.bitwise_or(t, 8)
torch.bitwise_xor(t, t + 1)
x.broadcast_to(2, 7)
w.char() + x
w.short() + x
(x * 1).copy_(w)
(x * 1).fill_(2.0)
(x * 1).zero_()
x.cpu()
torch.fliplr(two)
torch.flipud(x)
torch.inner(x, w)
torch.vdot(x, w)
x * x.is_floating_point()
x * torch.is_floating_point(t)
x * x.is_contiguous()
torch.isneginf(torch.log(w * 0))
torch.isposinf(x / 0.0)
torch.signbit(w)
x <= -1
w.ne(0)
torch.le(x, w)
torch.less_equal(x, -1)
torch.not_equal(t, 1)
torch.special.ndtr(x)
torch.rad2deg(x)
torch.trace(two[:3])
w.type('torch.LongTensor') * x
x.view(torch.float32)
math.acos(s) * math.asin(s) * math.atan(s) * x
math.acosh(s + 1) * math.asinh(s) * math.atanh(s) * x
math.cosh(s) * math.sinh(s) * math.tanh(s) * x
math.cos(s) * math.sin(s) * math.tan(s) * x
math.atan2(s, 2) * math.hypot(s, 2) * math.copysign(s, -1) * x
math.cbrt(s) * math.erf(s) * math.erfc(s) * math.exp2(s) * math.expm1(s) * x
math.degrees(s) * math.radians(s) * math.fabs(s) * x
math.fmod(x.shape[0], 4) * math.remainder(x.shape[0], 4) * x
math.gamma(x.shape[0]) * math.lgamma(x.shape[0]) * x
math.log10(x.shape[0]) * math.log1p(x.shape[0]) * math.log2(x.shape[0]) * math.log(x.shape[0], 3) * x
math.pow(x.shape[0], 0.5) * x
math.prod(two.shape) * two
math.floor(x.shape[0] / 2) * math.ceil(x.shape[0] / 2) * math.trunc(x.shape[0] / 2) * x
math.isfinite(s) * math.isnan(s) * x + math.isinf(s)
two.shape.numel() * two
two.nelement() * two
torch.atleast_1d(s) * x
torch.atleast_2d(x)
x.new_empty(0).sum() + x
torch.empty((x.shape[0], 0), dtype=torch.float64).sum() + x
torch.empty_like(x).shape[0] * x
torch.promote_types(x.dtype, torch.float64) == torch.float64
x.to(torch.result_type(t, x)) * w
x.dtype == torch.float32
x.shape == w.shape
torch.std_mean(two, False)[0] * torch.std_mean(two, dim=1)[1] * torch.std_mean(two, dim=1, unbiased=False)[0]
torch.var_mean(x, False)[0]
x * torch.sym_float(x.shape[0])
x * torch.sym_int(x.shape[0] / 2)
x * torch.sym_min(x.shape[0], 3)
x * torch.sym_not(x.is_contiguous())
torch.scalar_tensor(x.shape[0]) * x
x[torch.triu_indices(x.shape[0], x.shape[0], 1)]
x[torch.tril_indices(x.shape[0], x.shape[0], -1)[0]]
torch.meshgrid(x, w, indexing='ij')[0] * torch.meshgrid(x, w, indexing='xy')[1]
torch.equal(x, w) * x + x
torch.allclose(x, x) * x
torch.dist(x, w)
torch.dist(x, w, 1)
torch.trapezoid(x)
torch.trapz(two, dx=0.5, dim=0)
torch.addmm(two @ two.T, two, two.T, beta=0.5, alpha=2)
torch.addmv(two[:, 0], two @ two.T, two[:, 1])
torch.linalg.vecdot(x, w)
two.sum_to_size(1, 3)
torch.column_stack([x, w])
torch.isin(t, n) * x
torch.isin(t, t[:2]) * x
torch.searchsorted(w.sort().values, x)
torch.searchsorted(ties.sort().values, ties, right=True)
torch.bucketize(ties, ties.sort().values)
x.index_put((t,), w, accumulate=True)
w.index_put((t,), x, accumulate=True)
(x * 1).index_put_((mask.bool(),), s)
F.poisson_nll_loss(x, p)
F.poisson_nll_loss(p + x * x, p, log_input=False, reduction='sum')
F.gaussian_nll_loss(x, w, p)
F.gaussian_nll_loss(w, x, x * x, full=True, reduction='none')
F.triplet_margin_loss(two, w2, w2 * 2)
F.cosine_embedding_loss(two, w2, torch.sign(w), margin=-0.5)
torch.sum(x, 0, True)
x.std(0, True)
two.std(1, True, True)
x.max(dim=0, keepdim=True)[0]
two.any(0, True)
torch.where(w > 0, 1.0, 0.0) * x
torch.where(w > 0, 2, 1) * x
(x.sum() > 0) * x
x / torch.max(x.abs()).detach()
x - x.max()
x[mask == 1].std()
x[w > 100].sum() + x
x[w > 100].mean() * 0 + x
two[w > 100].shape[0] * two
x.clamp(min=s * -1)
x.mul(s)
x.add(1).log_softmax(0)
w[None, :] * two[:, :1]
(two - two.mean(1, keepdim=True)) / two.std(1, keepdim=True)
two.max(1, keepdim=True).values - two
torch.exp(two - two.max(dim=-1, keepdim=True)[0])
x.cumsum(-1).flip(-1)
two.cumsum(0)[-1]
x.float().mean().sqrt().nan_to_num() + x
F.softmax(x)
F.log_softmax(two)
x[-3:]
x[:-100].sum() + x
x[100:].sum() + x
x[-5:-2]
two[-1, -1]
two[:, -1:]
two[[True, False, True, True, False, False, True]]
two[..., 0][mask > 0]
x.reshape(x.shape)
x.view(1, -1, 1).squeeze()
x.view(1, -1, 1).squeeze(0)
x.view(1, -1, 1).squeeze((0, 2))
(x - x.mean()) / (x.std() + 1e-8)
x.split(split_size=3)[0]
x.split([2, 5])[1]
x.split_with_sizes([2, 5])[0]
x.scatter(0, t, value=2.0)
x.sort(stable=True)[0]
""".strip().splitlines()

# Elementwise expressions that also run on infinities, NaN, zeros and ties.
AT_EDGES = {e for e in OPERATIONS if "two" not in e and not any(
    word in e for word in ("view", "[", "t ", "t)", "t,", "sort", "math.", "long", "int", "byte", "char", "short", "arange", "quantile", "median", "topk", "kth", "half", "bfloat", "lgamma", "gelu", "cumprod", "binary_cross_entropy(", "clamp(x, w, w + 1)"))}
