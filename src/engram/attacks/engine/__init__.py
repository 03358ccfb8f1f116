"""The engine: the papers' equations, solved in the row space, in closed form and without tuning.

closed_form    stationarity of every layer and its gradients, by matrix products alone; the metric that weights it
objective      stationarity under the metric, margin, prior
image_prior    what images are expected to be like: total variation, a denoiser, the power of frequencies
self_tuning    scales from the weights, the strength of the prior, the length of starts
iteration      steps, starts, pool, time budgets: what all engines share
dense          the engine for fully-connected networks
convolutional  the engine for networks that start with convolutions
consensus      agreement of the restarts, merging, a score for every candidate without training data
"""
