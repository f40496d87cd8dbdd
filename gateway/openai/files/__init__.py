"""Endpoints: files, and uploads of files part by part."""
