"""The kernels on torch tensors, where the data is: Triton on CUDA, plain torch elsewhere.

Loaded only when a tensor arrives: nothing outside this folder and `neural/` imports torch.
"""
