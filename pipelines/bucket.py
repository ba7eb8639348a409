"""What an s3:// store means to Dagster: where its own logs go, and the S3 client that assets may ask for.

Importing dagster-aws costs 1.2 s and 50 MB, and a code location is imported for every run, so it is
imported inside functions. Credentials come from the environment, as the store's do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from pipelines.extras import demand
from tenure.errors import UsageError
from tenure_protocol.store.api import StoreUnusable
from tenure_protocol.store.s3 import parse_url

if TYPE_CHECKING:
    from dagster_aws.s3 import S3Resource

#: Below the store's own prefix, and the beginning of no key of Tenure's: no watch lists it.
LOGS = "dagster/compute_logs"
#: As many as the store's own client for everything but conditional writes: they outlast a restart of
#: 2 s. S3Resource calls them attempts, and sends one request more (10 seen with 9).
RETRIES = 8


@dataclass(frozen=True)
class Bucket:
    """The parts of an s3:// store's URL that anybody needs who is to reach the same place."""

    name: str
    prefix: str  # without slashes at its ends; may be empty
    endpoint_url: str | None
    region: str | None

    @classmethod
    def of(cls, url: str) -> Bucket | None:
        """The bucket of a store's URL; ``None`` for a store that is none. Raises UsageError.

        >>> Bucket.of("s3://b/p/q/?region=eu-west-1")
        Bucket(name='b', prefix='p/q', endpoint_url=None, region='eu-west-1')
        >>> Bucket.of("file:/b/p") is None
        True
        """
        if not url.startswith("s3:"):
            return None
        try:
            name, prefix, options = parse_url(url)
        except StoreUnusable as error:  # credentials would end up in Dagster's files
            raise UsageError(str(error)) from None
        return cls(name, prefix, options.get("endpoint_url"), options.get("region"))

    @property
    def url(self) -> str:
        """The same address in one spelling, to compare by and to show.

        >>> Bucket("b", "p", "http://h:1", "us-east-1").url
        's3://b/p?endpoint_url=http://h:1&region=us-east-1'
        """
        known = {"endpoint_url": self.endpoint_url, "region": self.region}
        options = urlencode({k: v for k, v in known.items() if v}, safe=":/")
        place = quote(f"{self.name}/{self.prefix}").rstrip("/")
        return f"s3://{place}" + (f"?{options}" if options else "")

    @property
    def logs(self) -> str:
        """The prefix of Dagster's logs in the bucket."""
        return f"{self.prefix}/{LOGS}".lstrip("/")

    def resource(self) -> S3Resource:
        """A client of the same endpoint and region. Raises UsageError without dagster-aws."""
        demand_dagster_aws()
        from dagster_aws.s3 import S3Resource

        return S3Resource(
            endpoint_url=self.endpoint_url, region_name=self.region, max_attempts=RETRIES
        )


def demand_dagster_aws() -> None:
    """Raises UsageError where the package is missing."""
    demand(
        "dagster_aws",
        "with an s3:// store Dagster reaches the bucket through dagster-aws, which is not installed; "
        "pip install -c constraints.txt -e '.[dagster,s3]'",
    )
