"""Nodes for a Ray cluster on KubeRay: an autoscaler's launches as replicas of a RayCluster's worker groups."""
