"""The engine: the same equations as the papers', solved where they live, in closed form and without tuning.

row_space      the few input directions that the first layer has learnt
frequencies    where images are large, and noise is not
image_space    the row space of images, down to directions that only low frequencies tell from noise
scales         every scale, from the weights alone
closed_form    stationarity of every layer and its gradients, by matrix products only
metric         how far each neuron's equation can be trusted in each direction
groups         neurons that share a metric where one for each is too much
prior          total variation, the mild image prior
objective      stationarity under the metric, margin, prior
passes         the candidates in chunks that fit into memory
frozen         upper layers that stand still between exact gradients
schedule       trials that choose the prior's strength, then the restarts
iteration      steps, starts, pool: what all engines do alike
adam           how they move
readout        images over all frequencies where noise left the row space few directions
solver         the engine of fully-connected networks
consensus      agreement of the restarts, merging, a score for every candidate without any training data
budget         a time as a plan
"""
