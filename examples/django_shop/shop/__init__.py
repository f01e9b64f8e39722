"""A Django shop whose orders are remembered.

export SHOP_BROKER_URL=redis://redis:6379/1
export NEXUS_DATABASE_URL=postgresql://nexus:…@db/nexus NEXUS_REDIS_URL=redis://redis:6379/0
python manage.py migrate
nexus namespaces create django-shop
celery -A shop worker --beat
"""

from shop.celery import app as celery_app

__all__ = ["celery_app"]
