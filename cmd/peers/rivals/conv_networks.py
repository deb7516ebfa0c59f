"""The networks of convolutions, layer by layer, as fusec/cmd/peers/workload has them.

A layer is a dict: kind, args (0 is the input, i + 1 the value of layer i), tensors (names of parameters), kernel, stride,
pad, groups, axis and the shape of its value.
"""
import math

import numpy as np

EPS = 1e-5


def mix(x):
    """The hash lowbias32, of an array of uint32."""
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x7FEB352D)
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def noise(seed, offset, scale, shape):
    """Tensor number `seed`: every step rounded to float32, in this order."""
    i = np.arange(math.prod(shape), dtype=np.uint32)
    h = mix(mix(i) + np.uint32(seed * 0x9E3779B9 & 0xFFFFFFFF))
    u = (h >> np.uint32(8)).astype(np.float32) / np.float32(1 << 24) - np.float32(0.5)
    return (u * np.float32(scale) + np.float32(offset)).reshape(shape)


class Net:
    """A network under construction. Methods return the number of a value."""

    def __init__(self, batch, channels, side):
        shape = (batch, channels, side, side)
        self.tensors = {"x": noise(1, 0, math.sqrt(12), shape)}
        self.layers, self.shapes, self.gains, self.flops = [], [shape], [1.0], 0

    def add(self, kind, args, shape, gain, **attrs):
        self.layers.append(dict(kind=kind, args=args, shape=shape, **attrs))
        self.shapes.append(shape)
        self.gains.append(gain)
        return len(self.layers)

    def tensor(self, kind, offset, scale, *shape):
        n = len(self.tensors)
        name = "%s%d" % (kind, n)
        self.tensors[name] = noise(n + 1, offset, scale, shape)
        return name

    def conv(self, x, out, kernel, stride=1, groups=1, bias=False):
        n, c, h, w = self.shapes[x]
        per, pad = c // groups, kernel // 2
        names = [self.tensor("w", 0, math.sqrt(12 * self.gains[x] / (per * kernel * kernel)), out, per, kernel, kernel)]
        if bias:
            names.append(self.tensor("b", 0, 0.1, out))
        shape = (n, out, (h + 2 * pad - kernel) // stride + 1, (w + 2 * pad - kernel) // stride + 1)
        self.flops += 2 * math.prod(shape) * per * kernel * kernel
        return self.add("conv", [x], shape, 1.0, tensors=names, kernel=kernel, stride=stride, pad=pad, groups=groups)

    def norm(self, x, by=1.0):
        c = self.shapes[x][1]
        names = [self.tensor("gamma", by, by / 2, c), self.tensor("beta", 0, 0.5, c),
                 self.tensor("mean", 0, 0.5, c), self.tensor("variance", 1, 0.5, c)]
        return self.add("norm", [x], self.shapes[x], 1.0, tensors=names)

    def act(self, kind, x):
        return self.add(kind, [x], self.shapes[x], 2.5 if kind == "silu" else 2.0)

    def normed(self, kind, x, out, kernel, stride=1, groups=1):
        x = self.norm(self.conv(x, out, kernel, stride, groups))
        return self.act(kind, x) if kind else x

    def sum(self, x, y):
        return self.add("add", [x, y], self.shapes[x], 1.0)

    def concat(self, axis, *values):
        shape = list(self.shapes[values[0]])
        shape[axis] = sum(self.shapes[v][axis] for v in values)
        return self.add("concat", list(values), tuple(shape), self.gains[values[0]], axis=axis)

    def max_pool(self, x, kernel, stride, pad):
        n, c, h, w = self.shapes[x]
        shape = (n, c, (h + 2 * pad - kernel) // stride + 1, (w + 2 * pad - kernel) // stride + 1)
        return self.add("maxpool", [x], shape, self.gains[x], kernel=kernel, stride=stride, pad=pad)

    def upsample(self, x):
        n, c, h, w = self.shapes[x]
        return self.add("upsample", [x], (n, c, 2 * h, 2 * w), self.gains[x])

    def flat(self, x):
        n, c, h, w = self.shapes[x]
        return self.add("flat", [x], (n, c, h * w, 1), self.gains[x])

    def classify(self, x):
        n, c, _, _ = self.shapes[x]
        x = self.add("mean", [x], (n, c, 1, 1), self.gains[x])
        names = [self.tensor("w", 0, math.sqrt(12 / c), c, 1000), self.tensor("b", 0, 0.1, 1000)]
        self.flops += 2 * n * c * 1000
        return self.add("linear", [x], (n, 1000, 1, 1), 1.0, tensors=names)

    def residual(self, x, y, stride):
        y = self.norm(y, 0.5)
        if stride != 1 or self.shapes[x][1] != self.shapes[y][1]:
            x = self.normed("", x, self.shapes[y][1], 1, stride)
        return self.act("relu", self.sum(y, x))


def stem(b):
    return b.max_pool(b.normed("relu", 0, 64, 7, 2), 3, 2, 1)


def resnet18(b):
    x = stem(b)
    for i in range(8):
        out, stride = 64 << i // 2, 2 if i > 0 and i % 2 == 0 else 1
        y = b.normed("relu", x, out, 3, stride)
        x = b.residual(x, b.conv(y, out, 3), stride)
    b.classify(x)


def resnet50(b):
    x = stem(b)
    for i, count in enumerate((3, 4, 6, 3)):
        for j in range(count):
            mid, stride = 64 << i, 2 if i > 0 and j == 0 else 1
            y = b.normed("relu", b.normed("relu", x, mid, 1), mid, 3, stride)
            x = b.residual(x, b.conv(y, 4 * mid, 1), stride)
    b.classify(x)


def mobilenet_v2(b):
    x = b.normed("relu6", 0, 32, 3, 2)
    for expand, out, count, first in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
                                      (6, 160, 3, 2), (6, 320, 1, 1)):
        for j in range(count):
            c, stride = b.shapes[x][1], first if j == 0 else 1
            y = b.normed("relu6", x, expand * c, 1) if expand > 1 else x
            y = b.normed("relu6", y, expand * c, 3, stride, expand * c)
            if stride == 1 and c == out:
                x = b.sum(x, b.norm(b.conv(y, out, 1), 0.5))
            else:
                x = b.normed("", y, out, 1)
    b.classify(b.normed("relu6", x, 1280, 1))


def unet(b):
    def level(x, out):
        return b.normed("relu", b.normed("relu", x, out, 3), out, 3)

    x, beside = 0, []
    for i in range(4):
        x = level(x, 32 << i)
        beside.append(x)
        x = b.max_pool(x, 2, 2, 0)
    x = level(x, 512)
    for i in reversed(range(4)):
        x = level(b.concat(1, b.upsample(x), beside[i]), 32 << i)
    b.conv(x, 2, 1, bias=True)


def yolo(b):
    def conv(x, out, kernel, stride=1):
        return b.normed("silu", x, out, kernel, stride)

    def c3(x, out, count, shortcut):
        y, z = conv(x, out // 2, 1), conv(x, out // 2, 1)
        for _ in range(count):
            v = conv(conv(y, out // 2, 1), out // 2, 3)
            y = b.sum(y, v) if shortcut else v
        return conv(b.concat(1, y, z), out, 1)

    x = c3(conv(conv(0, 32, 3, 2), 64, 3, 2), 64, 1, True)
    p3 = c3(conv(x, 128, 3, 2), 128, 2, True)
    p4 = c3(conv(p3, 256, 3, 2), 256, 3, True)
    x = conv(c3(conv(p4, 512, 3, 2), 512, 1, True), 256, 1)
    m1 = b.max_pool(x, 5, 1, 2)
    m2 = b.max_pool(m1, 5, 1, 2)
    x = conv(b.concat(1, x, m1, m2, b.max_pool(m2, 5, 1, 2)), 512, 1)
    h5 = conv(x, 256, 1)
    h4 = conv(c3(b.concat(1, b.upsample(h5), p4), 256, 1, False), 128, 1)
    o3 = c3(b.concat(1, b.upsample(h4), p3), 128, 1, False)
    o4 = c3(b.concat(1, conv(o3, 128, 3, 2), h4), 256, 1, False)
    o5 = c3(b.concat(1, conv(o4, 256, 3, 2), h5), 512, 1, False)
    b.act("sigmoid", b.concat(2, *[b.flat(b.conv(o, 75, 1, bias=True)) for o in (o3, o4, o5)]))


NETS = {"conv-resnet18": (224, resnet18), "conv-resnet50": (224, resnet50), "conv-mobilenet-v2": (224, mobilenet_v2),
        "conv-unet": (160, unet), "conv-yolo": (320, yolo)}
# channels, side, filters, kernel, stride, groups
SINGLE = {"conv-7x7-3-64": (3, 224, 64, 7, 2, 1), "conv-3x3-64": (64, 56, 64, 3, 1, 1),
          "conv-3x3-256": (256, 14, 256, 3, 1, 1), "conv-1x1-256-64": (256, 56, 64, 1, 1, 1),
          "conv-depthwise-128": (128, 56, 128, 3, 1, 128)}


def net(name):
    """The network of a workload, or None."""
    if name in SINGLE:
        channels, side, out, kernel, stride, groups = SINGLE[name]
        b = Net(1, channels, side)
        b.act("relu", b.conv(0, out, kernel, stride, groups, True))
        return b
    base = name.removesuffix("-b8")
    if base not in NETS:
        return None
    side, build = NETS[base]
    b = Net(1 if base == name else 8, 3, side)
    build(b)
    return b
