"""The engine: the same equations as the papers', solved where they live, in closed form and without tuning.

scales         every scale, from the weights alone
closed_form    stationarity of every layer and its gradients, by matrix products only
metric         how far each neuron's equation can be trusted in each direction
objective      stationarity under the metric, margin, image prior
schedule       trials that choose the prior's strength, then the restarts
iteration      steps, starts, pool, plans by time: what all engines do alike
dense          the engine of fully-connected networks
convolutional  the engine of networks that begin with convolutions
consensus      agreement of the restarts, merging, a score for every candidate without any training data
"""
