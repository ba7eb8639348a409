"""An asset of one's own that asks for dagster-aws's S3 client by type; a module of its own since that import costs a second."""

import dagster as dg
from dagster_aws.s3 import S3Resource

from pipelines.bucket import Bucket


def listing_of(url: str, seen: list[str]) -> dg.AssetsDefinition:
    """An asset that puts the keys of jobs into ``seen``, as its client lists them in the store at ``url``."""

    @dg.asset
    def listing(s3: S3Resource) -> None:
        bucket = Bucket.of(url)
        assert bucket is not None
        pages = s3.get_client().get_paginator("list_objects_v2")
        for part in pages.paginate(Bucket=bucket.name, Prefix=f"{bucket.prefix}/jobs/"):
            seen.extend(row["Key"].removeprefix(f"{bucket.prefix}/") for row in part["Contents"])

    return listing
