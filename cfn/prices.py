"""What a cluster costs per hour, if it can be known: the file's own price first, then AWS's price list."""

import json

from botocore.exceptions import BotoCoreError, ClientError

from cfn.aws import client
from cfn.design import Design


def instance_usd_per_hour(design: Design) -> float | None:
    """Price of one instance; None where nobody says. Spot and reserved capacity have no list price: only the
    file's counts.
    """
    nodes = design.file.nodes
    if nodes.usd_per_hour:
        return nodes.usd_per_hour
    if nodes.capacity != "on-demand":
        return None
    wanted = {
        "instanceType": nodes.instance_type,
        "regionCode": design.file.region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
    }
    filters = [{"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in wanted.items()]
    try:  # the price list is served from few regions; it is never a reason to stop
        offers = client("pricing", "us-east-1").get_products(ServiceCode="AmazonEC2", Filters=filters)["PriceList"]
    except (ClientError, BotoCoreError):
        return None
    for offer in map(json.loads, offers):
        for term in offer.get("terms", {}).get("OnDemand", {}).values():
            for price in term["priceDimensions"].values():
                if (usd := float(price["pricePerUnit"].get("USD", 0))) > 0:
                    return usd
    return None
