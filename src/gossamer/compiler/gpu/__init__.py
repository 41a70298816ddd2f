"""The GPU back end: the loop nests of the compiler as CUDA kernels.

What a user writes is what runs on a CPU, with tensors that are on a GPU::

    adj, x = adj.cuda(), x.cuda().requires_grad_()
    y = gs.einsum("nm,mk->nk", adj, x)                          # SpMM; x.half() and x.bfloat16() too, sums in float32
    y.sum().backward()                                          # SpMM with the transpose, whose order is kept
    v = gs.einsum("nm,m->n", adj, x[:, 0])                      # SpMV
    s = gs.einsum("ij,id,jd->ij", gs.mask(adj), q, k)           # SDDMM: the entries of adj
    p = torch.softmax(s, -1) @ v                                # the rest of masked attention
    t = gs.einsum("ijk,jr,kr->ir", tensor, b, c)                # MTTKRP
    r = gs.einsum("ij->j", adj)                                 # sums along any index
    m = gs.einsum("ij,ik,kj->ij", adj, a, b)                    # sparse x sparse where adj has entries
    print(gs.explain(gs.einsum, "nm,mk->nk", adj, x))           # loops, lanes, pieces; or why it is computed densely

One sparse operand, the *lead*, drives the loops: its entries are walked, every other sparse operand is searched. The
entries are sorted by the indices that the result has (once: the order is kept with the structure), and each group of
entries with the same place in the result is cut into *pieces* of a bounded number of entries, the longest first. A
piece is one turn of the outermost loop, and a few lanes of a warp compute it. So a row with a million entries is as
well shared as a million rows with one. The sum of a piece whose row has others goes to a slot of its own, and a second
nest of the same kind adds up the slots of each row, in order: the same bits every time.

- :mod:`~gossamer.compiler.gpu.pieces`: entries sorted and cut,
- :mod:`~gossamer.compiler.gpu.design`: the program of a statement: lead, order of loops,
- :mod:`~gossamer.compiler.gpu.mapping`: which loop the lanes of a warp share, how wide loads are,
- :mod:`~gossamer.compiler.gpu.emit`, :mod:`~gossamer.compiler.gpu.source`: a nest as CUDA, a kernel as a file,
- :mod:`~gossamer.compiler.gpu.bodies`, :mod:`~gossamer.compiler.gpu.rows`: loops whose bodies are written in a special
  way, and the one for SDDMM, with a row in registers,
- :mod:`~gossamer.compiler.gpu.kernel`: compiled by NVRTC, kept on disk, launched,
- :mod:`~gossamer.compiler.gpu.bound`: kernels with all arguments that don't change from call to call,
- :mod:`~gossamer.compiler.gpu.plan`: a statement on operands of known structure, ready to run on any values,
- :mod:`~gossamer.compiler.gpu.joined`: results with a pattern of their own, such as sparse x sparse,
- :mod:`~gossamer.compiler.gpu.elementwise`: steps on dense tensors alone, such as quotients of sums,
- :mod:`~gossamer.compiler.gpu.softmax`: softmax over rows, a nest that is no statement,
- :mod:`~gossamer.compiler.gpu.types`: types of values,
- :mod:`~gossamer.compiler.gpu.takes`: what is computed on dense copies instead, and why.
"""
