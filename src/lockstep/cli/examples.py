"""The examples at the end of each command's help. A test parses them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

EXAMPLES: Final[Mapping[str, Sequence[str]]] = {
    "up": (
        "lockstep up",
        "lockstep up --bucket gs://my-bucket/lockstep --max-running-jobs 4",
        "lockstep up --host 0.0.0.0 --port 8443 --tls-certificate chain.pem --tls-key key.pem",
    ),
    "down": ("lockstep down", "lockstep down --cancel"),
    "status": ("lockstep status", "lockstep status --json"),
    "doctor": ("lockstep doctor", "lockstep doctor --only disk --only devices", "lockstep doctor --json"),
    "open": ("lockstep open", "lockstep open train_1 --no-browser"),
    "completion": ("lockstep completion bash", "lockstep completion fish > ~/.config/fish/completions/lockstep.fish"),
    "whoami": ("lockstep whoami",),
    "costs": (
        "lockstep costs",
        "lockstep costs --by day --since 2026-11-01",
        "lockstep costs --by label:team --all-projects",
        "lockstep costs --by day --format csv > costs.csv",
    ),
    "cluster use": ("lockstep cluster use cluster.yaml",),
    "cluster generate": (
        "lockstep cluster generate cluster.yaml > raycluster.yaml",
        "lockstep cluster generate cluster.yaml --format ray --ssh-user ubuntu",
    ),
    "cluster attach": ("lockstep cluster attach 10.0.0.5:6379",),
    "cluster reset": ("lockstep cluster reset",),
    "cluster nodes": ("lockstep cluster nodes", "lockstep cluster nodes --all"),
    "submit": (
        "lockstep submit train_1 --package-path trainer --module-name trainer.task -- --epochs 10",
        "lockstep submit train_2 --package-path trainer --module-name trainer.task --config config.yaml --async",
        "lockstep submit train_3 --package-path trainer --module-name trainer.task --scale-tier BASIC_GPU --dry-run",
    ),
    "submit-prediction": (
        "lockstep submit-prediction batch_1 --model digits --input-paths 'gs://b/in/*' --output-path gs://b/out",
        "lockstep submit-prediction batch_2 --model-dir gs://b/m --input-paths gs://b/x --output-path gs://b/y --async",
    ),
    "jobs": (
        "lockstep jobs",
        "lockstep jobs --filter 'state:FAILED AND jobId:train*' --limit 50",
        "lockstep jobs --order-by 'costUsd desc' --limit 10",
        "lockstep jobs --format csv > jobs.csv",
    ),
    "describe": ("lockstep describe train_1", "lockstep describe train_1 --json"),
    "logs": (
        "lockstep logs train_1 --follow",
        "lockstep logs train_1 --severity ERROR --replica worker-replica-0 --since 1h",
        "lockstep logs train_1 --filter 'severity>=ERROR' --json",
        "lockstep logs --model digits/v1 -f",
    ),
    "metrics": (
        "lockstep metrics train_1",
        "lockstep metrics train_1 --replica worker-replica-0 --name cpuCores --json",
        "lockstep metrics --model digits",
    ),
    "top": ("lockstep top train_1", "lockstep top", "lockstep top train_1 --once", "lockstep top train_1 --json"),
    "artifacts": (
        "lockstep artifacts train_1",
        "lockstep artifacts train_1 --format csv > artifacts.csv",
        "lockstep artifacts train_1 --fetch --to results",
        "lockstep artifacts train_1 model tensorboard --fetch",
    ),
    "trials": ("lockstep trials digits", "lockstep trials digits --format csv > trials.csv"),
    "tensorboard": ("lockstep tensorboard train_1", "lockstep tensorboard train_1 train_2 --port 6007"),
    "profile": (
        "lockstep profile train_1 --steps 20",
        "lockstep profile train_1 --replica worker-replica-1 --to worker-1",
    ),
    "exec": (
        "lockstep exec train_1",
        "lockstep exec train_1 --replica worker-replica-0 -- nvidia-smi",
    ),
    "update": (
        "lockstep update train_1 --update-labels team=vision,run=3",
        "lockstep update train_1 --remove-labels run",
    ),
    "cancel": ("lockstep cancel train_1",),
    "deploy": (
        "lockstep deploy digits --job train_1",
        "lockstep deploy digits --model-url gs://b/net.keras --min-servers 0 --max-servers 4",
        "lockstep deploy digits --model-url gs://b/new.keras --traffic 10",
        "lockstep deploy texts --image-uri registry.example.com/server:1 --port 8080 --predict-route /predict",
    ),
    "predict": (
        "lockstep predict digits --json-request request.json",
        "lockstep predict digits --json-instances instances.jsonl --version v2",
        "lockstep predict pets --image cat.jpg",
    ),
    "undeploy": ("lockstep undeploy digits/v1", "lockstep undeploy digits --yes"),
    "export": (
        "lockstep export net.keras --to onnx --output net.onnx",
        "lockstep export --job train_1 --to stablehlo --output gs://b/net.stablehlo",
    ),
    "models list": ("lockstep models list", "lockstep models list --filter 'regions:us-central1'"),
    "models describe": ("lockstep models describe digits", "lockstep models describe digits/v1"),
    "models versions": ("lockstep models versions digits",),
    "models set-default": ("lockstep models set-default digits/v2",),
    "models traffic": ("lockstep models traffic digits", "lockstep models traffic digits v1=90 v2=10"),
    "models rollback": ("lockstep models rollback digits",),
    "models scale": (
        "lockstep models scale digits/v1 --nodes 3",
        "lockstep models scale digits/v2 --min-nodes 0 --max-nodes 8",
    ),
    "models update": ("lockstep models update digits --max-versions 5",),
    "models delete": ("lockstep models delete digits",),
    "data pack": (
        "lockstep data pack fashion-mnist data/",
        "lockstep data pack PetImages/ gs://b/pets --image-size 224x224",
        "lockstep data pack 'part-*.csv' data/ --column zip_code=text --delimiter ';'",
        "lockstep data pack users.parquet s3://b/users --key id --split train=0.9,val=0.1",
        "lockstep data pack table.npz data/ --shard-size 64MiB --compression gzip",
    ),
    "data inspect": (
        "lockstep data inspect gs://b/pets",
        "lockstep data inspect data/ --limit 3 --contact-sheet sheet.png",
    ),
    "data verify": ("lockstep data verify gs://b/pets",),
    "bucket mb": ("lockstep bucket mb gs://my-bucket",),
    "bucket ls": ("lockstep bucket ls gs://my-bucket/runs", "lockstep bucket ls gs://my-bucket/runs -r --format csv"),
    "bucket cp": (
        "lockstep bucket cp data/ gs://my-bucket/data -r",
        "lockstep bucket cp gs://my-bucket/runs/model.keras .",
    ),
    "bucket rm": ("lockstep bucket rm gs://my-bucket/old -r",),
    "init": ("lockstep init my_job", "lockstep init my_job --template loop"),
    "local train": (
        "lockstep local train --package-path trainer --module-name trainer.task -- --epochs 1",
        "lockstep local train --package-path trainer --module-name trainer.task --distributed --worker-count 2",
    ),
    "image build": ("lockstep image build trainer --module-name trainer.task --tag registry.example.com/trainer:1",),
    "image push": ("lockstep image push registry.example.com/trainer:1",),
    "plan": (
        "lockstep plan train.py --on v5e:4x4",
        "lockstep plan train.py --on v4:2x2x2,v5e:4x4 -- --batch-size 512",
    ),
    "migrate": ("lockstep migrate train.py", "lockstep migrate trainer/ --write"),
    "keys create": (
        "lockstep keys create ann --project vision",
        "lockstep keys create shop --project vision --model digits --requests-per-second 50 --output shop.key",
    ),
    "keys list": ("lockstep keys list",),
    "keys revoke": ("lockstep keys revoke lsk_0123456789ab",),
    "secrets set": ("lockstep secrets set hub-token --file token.txt",),
    "secrets list": ("lockstep secrets list",),
    "secrets rm": ("lockstep secrets rm hub-token",),
    "webhooks deliveries": ("lockstep webhooks deliveries ops", "lockstep webhooks deliveries 0 --job rnn_7"),
}
"""The examples, by the command without ``lockstep``."""
