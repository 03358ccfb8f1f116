"""The engine for networks that begin with convolutions.

A convolution's kernels are small and its gradient is a sum over all patches of all images: C k k directions, all
of them full, so it has no row space that would hold images. The first fully-connected layer has one, over the
features h(x) that the convolutions make of an image:

    W = sum_i lambda_i y_i delta_i h(x_i)ᵀ

Its rows lie in the span of the training images' features, few directions among very many; hardly anything but a
training image has its features there. So pixels are the unknowns, their features' coordinates in that row space go
through the engine's own objective, and what sticks out of it is penalised.

problem    the row space over features, and every scale, from the weights
solver     the engine
"""
