#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tests/bench/torch_peer.py - the standard models in PyTorch, beside step_bench.

Question  How long is a step of the same model, batch and precision in PyTorch, eager (peer-eager)
          and with forward, backward and optimizer captured in one CUDA graph (peer-graph)?
Method    As step_bench: both paths are open at the same time and take turns, a run of steps each;
          the median of the runs is kept. Inputs lie on the device already, which is to the peer's
          advantage: libren's steps copy theirs from pinned slots (--copy-inputs copies a pinned
          batch in each step here, too). Convolutions are tried in both memory formats, and the
          faster one counts; cuDNN chooses its algorithms by measuring; the optimizer is the fused
          SGD with momentum 0.9. f16 uses autocast and a GradScaler whose decisions stay on the
          device; f32 switches TF32 off, tf32 switches it on.
Check     Losses must be finite and fall; the parameter counts must be those of models.h.
Output    A table, and rows "<model>/<batch>/<precision>/<path>,step_ms" in the file that the C
          benchmarks write. Without PyTorch or a CUDA device: one line, and exit status 0.
Flags     --help lists them; those that step_bench has mean the same, and the default cases are its
          own (step_bench --device cuda --list 1).
"""
import argparse
import csv
import datetime
import os
import platform
import statistics
import subprocess
import sys
import time

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
except Exception as error:  # a broken installation raises more than ImportError
    print("torch_peer: skipped: PyTorch cannot be imported (%s)" % str(error).splitlines()[0])
    sys.exit(0)

RUN_S = 0.3  # aimed at, of one run
CASES = ("mlp-64x4/256/f16,mlp-64x4/16384/f16,mlp-256x4/1024/f16,lenet28/128/tf32,incep32/32/f16,"
         "incep32/32/tf32,resnet18-cifar/128/f16,vgg11-cifar/128/f16,resnet50-224/64/f16,"
         "heads32/32/f16")
PATHS = ("peer-eager", "peer-graph")
COLUMNS = ("date", "commit", "machine", "driver", "bench", "case", "metric", "unit", "value")


# ---------------------------------------------------------------------------- models

def conv_bn(inputs, filters, kernel, stride=1, padding=0):
    return [nn.Conv2d(inputs, filters, kernel, stride, padding, bias=False),
            nn.BatchNorm2d(filters)]


def conv_bn_relu(inputs, filters, kernel, stride=1, padding=0):
    return nn.Sequential(*conv_bn(inputs, filters, kernel, stride, padding), nn.ReLU(inplace=True))


def global_pool():
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())


def mlp(inputs, width, outputs):
    layers, last = [], inputs
    for _ in range(4):
        layers += [nn.Linear(last, width), nn.ReLU(inplace=True)]
        last = width
    return nn.Sequential(*layers, nn.Linear(last, outputs))


def lenet28():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(inplace=True), nn.Conv2d(32, 64, 3), nn.ReLU(inplace=True),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(inplace=True),
        nn.Linear(128, 10))


class Inception(nn.Module):
    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList([
            conv_bn_relu(64, 16, 1), conv_bn_relu(64, 16, 3, 1, 1), conv_bn_relu(64, 16, 5, 1, 2),
            nn.Sequential(nn.MaxPool2d(3, 1, 1), conv_bn_relu(64, 16, 1))])

    def forward(self, x):
        return torch.cat([branch(x) for branch in self.branches], 1)


def incep32():
    return nn.Sequential(conv_bn_relu(3, 64, 3, 1, 1), *[Inception() for _ in range(5)],
                         global_pool(), nn.Linear(64, 10))


class Residual(nn.Module):
    def __init__(self, body, shortcut):
        super().__init__()
        self.body = nn.Sequential(*body)
        self.shortcut = nn.Sequential(*shortcut)

    def forward(self, x):
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


def basic(inputs, filters, stride):
    body = [conv_bn_relu(inputs, filters, 3, stride, 1), *conv_bn(filters, filters, 3, 1, 1)]
    same = stride == 1 and inputs == filters
    return Residual(body, [] if same else conv_bn(inputs, filters, 1, stride)), filters


def bottleneck(inputs, filters, stride):
    outputs = 4 * filters
    body = [conv_bn_relu(inputs, filters, 1), conv_bn_relu(filters, filters, 3, stride, 1),
            *conv_bn(filters, outputs, 1)]
    same = stride == 1 and inputs == outputs
    return Residual(body, [] if same else conv_bn(inputs, outputs, 1, stride)), outputs


def stages(inputs, depths, block):
    layers = []
    for stage, depth in enumerate(depths):
        for i in range(depth):
            layer, inputs = block(inputs, 64 << stage, 2 if stage > 0 and i == 0 else 1)
            layers.append(layer)
    return layers, inputs


def resnet18():
    layers, last = stages(64, (2, 2, 2, 2), basic)
    return nn.Sequential(conv_bn_relu(3, 64, 3, 1, 1), *layers, global_pool(), nn.Linear(last, 10))


def resnet50():
    layers, last = stages(64, (3, 4, 6, 3), bottleneck)
    return nn.Sequential(conv_bn_relu(3, 64, 7, 2, 3), nn.MaxPool2d(3, 2, 1), *layers,
                         global_pool(), nn.Linear(last, 1000))


def vgg11():
    layers, last = [], 3
    for filters in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
        if filters:
            layers.append(conv_bn_relu(last, filters, 3, 1, 1))
            last = filters
        else:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))


class Heads(nn.Module):
    """A trunk and three heads: a class, four numbers, a mask."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(conv_bn_relu(3, 32, 3, 1, 1), conv_bn_relu(32, 64, 3, 2, 1),
                                   conv_bn_relu(64, 64, 3, 1, 1))
        self.label = nn.Sequential(global_pool(), nn.Linear(64, 10))
        self.pose = nn.Sequential(global_pool(), nn.Linear(64, 64), nn.ReLU(inplace=True),
                                  nn.Linear(64, 4))
        self.mask = nn.Sequential(nn.Conv2d(64, 32, 3, 1, 1), nn.ReLU(inplace=True),
                                  nn.Conv2d(32, 16, 3, 1, 1), nn.ReLU(inplace=True),
                                  nn.Conv2d(16, 1, 1), nn.Sigmoid())

    def forward(self, x):
        x = self.trunk(x)
        return self.label(x), self.pose(x), self.mask(x)


def class_loss(output, targets):
    return F.cross_entropy(output, targets[0])


def heads_loss(outputs, targets):
    return (F.cross_entropy(outputs[0], targets[0]) + F.huber_loss(outputs[1], targets[1]) +
            F.mse_loss(outputs[2], targets[2]))


# name: (builder, batch, input of one row, classes, learning rate, parameters)
MODELS = {
    "mlp-64x4": (lambda: mlp(32, 64, 10), 256, (32,), 10, 0.02, 15242),
    "mlp-256x4": (lambda: mlp(64, 256, 16), 1024, (64,), 16, 0.02, 218128),
    "lenet28": (lenet28, 128, (1, 28, 28), 10, 0.01, 1199882),
    "incep32": (incep32, 32, (3, 32, 32), 10, 0.01, 187466),
    "resnet18-cifar": (resnet18, 128, (3, 32, 32), 10, 0.01, 11173962),
    "vgg11-cifar": (vgg11, 128, (3, 32, 32), 10, 0.01, 9228362),
    "resnet50-224": (resnet50, 64, (3, 224, 224), 1000, 0.01, 25557032),
    "heads32": (Heads, 32, (3, 32, 32), 10, 0.01, 84655),
}
# Further targets of one row, and the loss, where it is not the cross entropy of classes.
TARGETS = {"heads32": ((4,), (1, 16, 16))}
LOSSES = {"heads32": heads_loss}


# ---------------------------------------------------------------------------- one step

class Session:
    """One model in training on one path, in one memory format."""

    def __init__(self, args, name, batch, precision, path, nhwc):
        build, _, row, classes, rate, parameters = MODELS[name]
        torch.manual_seed(1)
        self.device = torch.device(args.device)
        self.cuda = self.device.type == "cuda"
        self.dtype = {"f16": torch.float16, "bf16": torch.bfloat16}.get(precision)
        self.copy_inputs = args.copy_inputs
        self.model = build().to(self.device)
        counted = sum(p.numel() for p in self.model.parameters())
        if counted != parameters:
            raise RuntimeError("%d parameters, not %d" % (counted, parameters))
        x = torch.rand(batch, *row) * 2 - 1
        targets = [torch.randint(classes, (batch,))]
        targets += [torch.rand(batch, *dims) * 2 - 1 for dims in TARGETS.get(name, ())]
        self.criterion = LOSSES.get(name, class_loss)
        if nhwc:
            self.model = self.model.to(memory_format=torch.channels_last)
            x = x.contiguous(memory_format=torch.channels_last)
        self.host = [t.pin_memory() if self.cuda else t for t in [x] + targets]
        self.x, *self.targets = [t.to(self.device) for t in [x] + targets]
        self.optimizer = self.make_optimizer(rate)
        self.scaler = None
        if self.dtype == torch.float16:
            self.scaler = torch.amp.GradScaler(self.device.type)
        self.loss = None
        self.graph = None
        self.capturing = False
        self.first = None
        if path == "peer-graph":
            self.capture()
        else:
            self.eager()
            self.first = float(self.loss.detach())

    def make_optimizer(self, rate):
        parameters = list(self.model.parameters())
        optimizer = torch.optim.SGD(parameters, lr=rate, momentum=0.9)
        if self.cuda:
            try:
                optimizer = torch.optim.SGD(parameters, lr=rate, momentum=0.9, fused=True)
            except (TypeError, RuntimeError):  # a version without the fused form
                pass
        # Make the momentum, as zeros. Where the first step overflows (f16, deep networks), the
        # fused form skips it but takes the momentum, which nothing has set, for made: NaN.
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return optimizer

    def forward(self):
        if self.dtype is None:
            return self.criterion(self.model(self.x), self.targets)
        # The cache of casts must not outlive a capture.
        with torch.autocast(self.device.type, dtype=self.dtype, cache_enabled=not self.capturing):
            return self.criterion(self.model(self.x), self.targets)

    def update(self):
        if self.scaler is None:
            self.loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(self.loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def eager(self):
        self.optimizer.zero_grad(set_to_none=True)
        self.loss = self.forward()
        self.update()

    def capture(self):
        self.capturing = True
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(5):
                self.eager()
                if self.first is None:
                    self.first = float(self.loss.detach())
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self.optimizer.zero_grad(set_to_none=True)
        self.loss = None  # with it go gradient nodes that remember the warm-up
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            self.loss = self.forward()
            self.update()
        self.graph = graph

    def step(self):
        if self.copy_inputs:
            for there, here in zip([self.x] + self.targets, self.host):
                there.copy_(here, non_blocking=True)
        if self.graph is not None:
            self.graph.replay()
        else:
            self.eager()

    def run(self, steps):
        """Seconds per step."""
        self.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        self.synchronize()
        return (time.perf_counter() - start) / steps

    def synchronize(self):
        if self.cuda:
            torch.cuda.synchronize()

    def check(self, steps):
        last = float(self.loss.detach())
        if last != last or last in (float("inf"), float("-inf")):
            raise RuntimeError("the loss is %g" % last)
        if steps > 30 and not last < self.first:
            raise RuntimeError("does not train: the loss went from %g to %g" % (self.first, last))


# ---------------------------------------------------------------------------- cases

def set_precision(precision):
    tf32 = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True


def open_sessions(args, name, batch, precision, path):
    """By memory format; what fails is printed and left out."""
    sessions = {}
    formats = (False, True) if len(MODELS[name][2]) == 3 else (False,)
    for nhwc in formats:
        try:
            session = Session(args, name, batch, precision, path, nhwc)
            session.run(3)
            sessions["nhwc" if nhwc else "nchw"] = session
        except Exception as error:
            print("%s/%d/%s/%s: n/a: %s" % (name, batch, precision, path,
                                           str(error).splitlines()[0] if str(error) else
                                           type(error).__name__))
            if args.device == "cuda":
                torch.cuda.synchronize()
    return sessions


def faster(sessions, args):
    """The session of the faster format, its name, and the steps of a run."""
    best = None
    for layout, session in sessions.items():
        guess = session.run(5)
        seconds = session.run(max(2, min(20, int(0.1 / guess))))
        if best is None or seconds < best[2]:
            best = (session, layout, seconds)
    if best is None:
        return None
    steps = args.steps or max(3, min(5000, int((0.03 if args.quick else RUN_S) / best[2])))
    return best[0], best[1], steps


def measure(args, name, batch, precision):
    set_precision(precision)
    chosen = {}
    for path in PATHS:
        if args.path and path not in args.path.split(","):
            continue
        if path == "peer-graph" and args.device != "cuda":
            continue
        best = faster(open_sessions(args, name, batch, precision, path), args)
        if best is not None:
            chosen[path] = best
    times = {path: [] for path in chosen}
    for _ in range(args.repeats):
        for path, (session, _, steps) in chosen.items():
            times[path].append(session.run(steps) * 1e3)
    for path, (session, layout, steps) in chosen.items():
        session.check(steps * args.repeats)
        case = "%s/%d/%s/%s" % (name, batch, precision, path)
        median = statistics.median(times[path])
        print("%-44s %10.4f %10.4f %10.4f  %s" % (case, median, min(times[path]),
                                                 max(times[path]), layout), flush=True)
        write_row(args, case, median)


def write_row(args, case, value):
    if args.no_csv:
        return
    os.makedirs(args.dir, exist_ok=True)
    path = os.path.join(args.dir, args.machine + ".csv")
    with open(path, "a", newline="") as f:
        writer = csv.writer(f)
        if f.tell() == 0:
            writer.writerow(COLUMNS)
        today = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
        writer.writerow((today, args.commit, args.machine, args.driver, "step", case, "step_ms",
                         "ms", "%.9g" % value))


# ---------------------------------------------------------------------------- main

def output_of(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return done.stdout.strip().splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return ""


def read_arguments():
    p = argparse.ArgumentParser(description="The standard models in PyTorch, beside step_bench.")
    p.add_argument("--machine", default="%s-%s" % (platform.system(), platform.machine()))
    p.add_argument("--commit", default="")
    p.add_argument("--driver", default="")
    p.add_argument("--dir", default="tests/bench/results")
    p.add_argument("--no-csv", action="store_true")
    p.add_argument("--quick", action="store_true", help="a tenth of the work, no rows")
    p.add_argument("--repeats", type=int, default=9)
    p.add_argument("--steps", type=int, default=0, help="of a run; default by time")
    p.add_argument("--cases", default="", help="<model>/<batch>/<precision>, by commas")
    p.add_argument("--model", default="", help="names, separated by commas, in place of --cases")
    p.add_argument("--batch", type=int, default=0, help="with --model; default by model")
    p.add_argument("--precision", default="f32,tf32,f16", help="with --model: f32, tf32, f16, bf16")
    p.add_argument("--path", default="", help="peer-eager, peer-graph; default both")
    p.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    p.add_argument("--copy-inputs", action="store_true", help="copy a pinned batch in each step")
    args = p.parse_args()
    args.machine = args.machine.lower()
    args.repeats = max(1, args.repeats)
    if args.quick:
        args.repeats, args.no_csv = 1, True
    if not args.commit:
        args.commit = output_of("git", "rev-parse", "--short", "HEAD") or "unknown"
    return args


def chosen_cases(args):
    """(model, batch, precision) of each."""
    if args.cases or not args.model:
        named = [case.split("/") for case in (args.cases or CASES).split(",")]
        return [(name, int(batch), precision) for name, batch, precision in named]
    return [(name, args.batch or MODELS[name][1], precision) for name in args.model.split(",")
            for precision in args.precision.split(",")]


def main():
    args = read_arguments()
    if args.device == "cuda":
        try:
            torch.zeros(1, device="cuda")
        except Exception as error:
            print("torch_peer: skipped: no CUDA device (%s)" % str(error).splitlines()[0])
            return 0
        if not args.driver:
            args.driver = output_of("nvidia-smi", "--query-gpu=driver_version",
                                    "--format=csv,noheader")
        print("PyTorch %s, %s" % (torch.__version__, torch.cuda.get_device_name(0)))
    failed = 0
    print("%-44s %10s %10s %10s  %s" % ("case", "step ms", "lowest", "highest", "format"))
    for name, batch, precision in chosen_cases(args):
        try:
            measure(args, name, batch, precision)
        except Exception as error:
            failed += 1
            print("%s/%d/%s: failed: %s: %s" % (name, batch, precision, type(error).__name__,
                                               str(error).splitlines()[0] if str(error) else ""))
        if args.device == "cuda":
            torch.cuda.empty_cache()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
